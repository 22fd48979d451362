"""The connection of one HTTP request: its client may leave; its response may be server-sent events."""

import asyncio
import json
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Send

T = TypeVar("T")
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # A proxy that buffers responses would delay tokens.
    (b"x-accel-buffering", b"no"),
]
_LINE_ENDS = tuple((end.encode(), json.dumps(end)[1:-1].encode()) for end in "\u0085\u2028\u2029")
"""Characters at which some clients cut a line although events do not end there, and their escapes in JSON."""


async def while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """Return the result of the work; if the client disconnects first, cancel it and raise ClientDisconnect.

    `receive` reports the end of the connection; the body has been read from it. The work has always ended
    when this returns or raises; its own errors are raised.
    """
    has_left, working = False, asyncio.current_task()
    assert working is not None

    async def watch() -> None:
        nonlocal has_left
        while (await receive())["type"] != "http.disconnect":
            pass
        has_left = True
        working.cancel()

    num_cancelled, watching = working.cancelling(), asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        # NOTE: as in `asyncio.timeout`: a cancellation of the request from elsewhere stays in force.
        if has_left and working.uncancel() <= num_cancelled:
            raise ClientDisconnect from None
        raise
    finally:
        watching.cancel()


class EventStream:
    """Server-sent events; the response begins with the first one.

    Attributes:
        have_begun: True once an error can no longer be reported by an HTTP status.
    """

    def __init__(self, send: Send) -> None:
        self.have_begun = False
        self._send = send

    async def send(self, data: bytes, name: str = "") -> None:
        """Send one event; with a name, if it has one."""
        named = f"event: {name}\n".encode() if name else b""
        await self._write(b"%bdata: %b\n\n" % (named, _on_one_line(data)), more_body=True)

    async def end(self, *data: bytes) -> None:
        """End the response, after these events."""
        lines = b"".join(b"data: %b\n\n" % _on_one_line(each) for each in data)
        await self._write(lines, more_body=False)

    async def _write(self, body: bytes, more_body: bool) -> None:
        if not self.have_begun:
            self.have_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._send({"type": "http.response.body", "body": body, "more_body": more_body})


def _on_one_line(data: bytes) -> bytes:
    """Return JSON that is one line to every client."""
    if not data.isascii():
        for end, escape in _LINE_ENDS:
            data = data.replace(end, escape)
    return data
