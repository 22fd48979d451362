"""Connections of the HTTP server: uvicorn's, with limits on their number, work and silence."""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from router.http.request_parser import RequestParser
from services.common.open_files import most_open_files

_MOST_AHEAD = 16_384
"""Bytes of further requests that are read while one runs."""


@dataclass(eq=False, kw_only=True, slots=True)
class ConnectionPool:
    """Limits of all connections, and those that wait for a request.

    Attributes:
        header_timeout_s: Time for a request's header, and for the rest of a body whose response was sent.
        unread_timeout_s: Time that a client may take no part of the end of a response.
        max_connections: Most connections.
        waiting: Connections without a request, the one that has waited longest first.
        interrupted: Connections whose bytes took more events than one turn of the event loop has.
    """

    header_timeout_s: float
    unread_timeout_s: float
    max_connections: int
    waiting: dict["Connection", None] = field(default_factory=dict)
    interrupted: deque["Connection"] = field(default_factory=deque)

    @property
    def limit(self) -> int:
        """Most connections; the other half of the process's files is for replicas and gRPC clients."""
        return min(self.max_connections, most_open_files() // 2)

    def parse_later(self, connection: "Connection") -> None:
        """Let a connection parse on in a later turn of the event loop; each turn, one of all does."""
        self.interrupted.append(connection)
        if len(self.interrupted) == 1:
            connection.loop.call_soon(self._parse_next)

    def _parse_next(self) -> None:
        connection = self.interrupted.popleft()
        if self.interrupted:
            connection.loop.call_soon(self._parse_next)
        connection.parse_on()


class _Flow(FlowControl):
    """uvicorn's flow control; nothing is read while there is more to parse.

    Attributes:
        is_behind: True while there is more to parse.
    """

    is_behind = False

    def stop_reading(self) -> None:
        """Stop, also where uvicorn has resumed the transport itself."""
        self.is_behind = self.read_paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_behind:
            super().resume_reading()


class Connection(H11Protocol):
    """One connection, which ends when its client leaves a request unfinished or a response unread."""

    conn: RequestParser
    flow: _Flow

    def __init__(self, pool: ConnectionPool, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn = RequestParser()
        self._pool = pool
        self._expiry: asyncio.TimerHandle | None = None
        self._unread_check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self._watch()
        if len(self.connections) > self._pool.limit:
            next(iter(self._pool.waiting)).close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.waiting.pop(self, None)
        for timer in (self._expiry, self._unread_check):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        self.conn.begin_turn()
        super().handle_events()
        if not self.transport.is_closing():
            self._watch()
            self._keep_reading()

    def parse_on(self) -> None:
        """Parse what is left of the bytes that came at once."""
        self.flow.is_behind = False
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self.handle_events()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._watch()
        if self._unread_check is None:
            self._check_unread()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread_check is None:
            # NOTE: the write has failed by then; it remains to end a connection whose error nobody reads.
            self._unread_check = self.loop.call_later(self._pool.unread_timeout_s, self._check_unread)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread_check is not None:
            self._unread_check.cancel()
            self._unread_check = None
        if self.cycle.response_complete:
            self._check_unread()

    def send_400_response(self, msg: str) -> None:
        """Reject bytes that are not HTTP; close at once if a response has begun already."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def close(self) -> None:
        """Close a connection that has no request in progress."""
        self._pool.waiting.pop(self, None)
        self.timeout_keep_alive_handler()

    def _keep_reading(self) -> None:
        """Read on while a request runs, to see that its client leaves; a little of the next one may come.

        Read nothing while there is more to parse.
        """
        if self.conn.is_interrupted:
            if not self.flow.is_behind:
                self._pool.parse_later(self)
            self.flow.stop_reading()
        elif self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) <= _MOST_AHEAD:
            self.flow.resume_reading()

    def _watch(self) -> None:
        """Note whether the connection waits for a request, and limit the time of what its client owes."""
        if self.conn.their_state is h11.IDLE:
            self._pool.waiting.setdefault(self)
        else:
            self._pool.waiting.pop(self, None)
        if not self._is_owed:
            if self._expiry is not None:
                self._expiry.cancel()
                self._expiry = None
        elif self._expiry is None:
            # NOTE: further bytes do not extend it.
            self._expiry = self.loop.call_later(self._pool.header_timeout_s, self.close)

    @property
    def _is_owed(self) -> bool:
        """True if the client owes a header that has begun, the first one, or the rest of a body."""
        theirs = self.conn.their_state
        if theirs is h11.IDLE:
            return self.timeout_keep_alive_task is None or bool(self.conn.trailing_data[0])
        return theirs is h11.SEND_BODY and self.conn.our_state is h11.DONE

    def _check_unread(self, previous: int | None = None) -> None:
        """Abort if the client has read nothing of what is left of its response since the last check."""
        unread = self.transport.get_write_buffer_size()
        self._unread_check = None
        if unread and unread == previous:
            self.transport.abort()
        elif unread:
            self._unread_check = self.loop.call_later(self._pool.unread_timeout_s, self._check_unread, unread)
