"""Middleware that counts HTTP requests against the quotas of their callers."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.security.callers import current_caller
from router.security.quotas import Quotas

_FREE = frozenset({"GET", "HEAD", "OPTIONS"})


class Metering:
    """Middleware that counts a request, and the bytes of its body, against quotas before they are read."""

    def __init__(self, app: ASGIApp, quotas: Quotas, max_body_bytes: int) -> None:
        self._app = app
        self._quotas = quotas
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or raise Overloaded."""
        if scope["method"] in _FREE:
            await self._app(scope, receive, send)
            return
        # NOTE: a body that is longer than allowed is rejected where it is read; it never takes more.
        announced = min(int(Headers(scope=scope).get("content-length", 0)), self._max_body_bytes)
        with self._quotas.admitted(current_caller(), announced) as hold:

            async def counting() -> Message:
                message = await receive()
                hold(len(message.get("body", b"")))
                return message

            await self._app(scope, receive if announced else counting, send)
