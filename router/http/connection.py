"""The connection of one HTTP request: its client may leave; its response may be server-sent events."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Send

from router.generation.choices import end_tasks

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # A proxy that buffers responses would delay tokens.
    (b"x-accel-buffering", b"no"),
]


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work; if the client disconnects first, cancel the work and raise ClientDisconnect.

    `receive` reports the end of the connection; the body has been read from it. The work has always ended
    when this returns or raises; its own errors are raised.
    """
    working, leaving = asyncio.create_task(work), asyncio.create_task(_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        working.result()
    finally:
        await end_tasks((working, leaving))


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


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
        if not self.have_begun:
            self.have_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        named = f"event: {name}\n".encode() if name else b""
        await self._send(
            {"type": "http.response.body", "body": b"%bdata: %b\n\n" % (named, data), "more_body": True}
        )

    async def end(self) -> None:
        """End the response."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
