"""Parser of HTTP requests with a limit of work in one turn of the event loop."""

from typing import Any

import h11

_MOST_EVENTS = 100
"""Events of one turn: each chunk of a body is one, and takes several microseconds."""
_PIECE_BYTES = 8192
"""Bytes that h11 gets at once: it parses all lines of a header or trailer as one event."""
_MOST_FIELDS = 100
"""Most fields of a header or of a trailer."""


class RequestParser(h11.Connection):
    """h11's parser of a server, which stops after some events until `begin_turn` is called."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER)
        self._unparsed = bytearray()
        self._events_left = 0

    @property
    def trailing_data(self) -> tuple[bytes, bool]:
        """Return the bytes that were received and not parsed, and False, since no end is reported."""
        data, is_ended = super().trailing_data
        return data + self._unparsed, is_ended

    @property
    def is_interrupted(self) -> bool:
        """True if this turn has no event left, so that there may be more to parse."""
        return self._events_left == 0

    def begin_turn(self) -> None:
        """Allow further events."""
        self._events_left = _MOST_EVENTS

    def receive_data(self, data: bytes) -> None:
        self._unparsed += data

    def next_event(self) -> Any:
        """Return the next event as h11 does; NEED_DATA also if this turn has no event left.

        Raise h11.RemoteProtocolError if the bytes are not HTTP, or a header is too large.
        """
        if self.is_interrupted:
            return h11.NEED_DATA
        self._events_left -= 1
        event = super().next_event()
        while event is h11.NEED_DATA and self._unparsed:
            super().receive_data(bytes(self._unparsed[:_PIECE_BYTES]))
            del self._unparsed[:_PIECE_BYTES]
            event = super().next_event()
        if isinstance(event, h11.Request | h11.EndOfMessage) and len(event.headers) > _MOST_FIELDS:
            raise h11.RemoteProtocolError(f"more than {_MOST_FIELDS} fields", error_status_hint=431)
        return event
