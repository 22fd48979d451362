"""Middleware for the form of a request: its target, the framing of its body, `Expect`."""

from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.http.errors import Rejected

_CLOSE = {"Connection": "close"}


class Expectations:
    """Middleware that ends the connection of a client that waits for `100 Continue` and gets a response.

    Its body may follow, or its next request: the server cannot know.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if Headers(scope=scope).get("expect", "").lower() == "100-continue":
            receive, send = _closing_unread(receive, send)
        await self._app(scope, receive, send)


class RequestForm:
    """Middleware that rejects a body of ambiguous length, and serves absolute targets."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or raise Rejected."""
        _check_framing(Headers(scope=scope), scope["http_version"])
        await self._app(_with_relative_target(scope), receive, send)


def _check_framing(headers: Headers, version: str) -> None:
    """Raise Rejected where a proxy in front may have found another end of the body (RFC 9112, 6.1)."""
    if "transfer-encoding" not in headers:
        return
    if "content-length" in headers:
        found = "Content-Length and Transfer-Encoding are both set, at most one is allowed"
        raise Rejected(400, found, "Transfer-Encoding", "invalid_value", _CLOSE)
    if version != "1.1":
        found = f"Transfer-Encoding is set in HTTP/{version}, which does not have it: set Content-Length"
        raise Rejected(400, found, "Transfer-Encoding", "invalid_value", _CLOSE)


def _closing_unread(receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Return both with the connection ended by a response that begins before the body was asked for."""
    has_read = False

    async def reading() -> Message:
        nonlocal has_read
        has_read = True
        return await receive()

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start" and not has_read:
            MutableHeaders(scope=message)["Connection"] = "close"
        await send(message)

    return reading, closing


def _with_relative_target(scope: Scope) -> Scope:
    """Return the scope with the path of an absolute target, and with its host (RFC 9112, 3.2.2)."""
    raw: bytes = scope["raw_path"]
    if raw[:7].lower() != b"http://" and raw[:8].lower() != b"https://":
        return scope
    try:
        target = urlsplit(raw.decode("ascii"))
    except ValueError:
        raise Rejected(400, "the request's target is not a URL") from None
    path = target.path or "/"
    others = [(name, value) for name, value in scope["headers"] if name != b"host"]
    headers = [(b"host", target.netloc.encode()), *others]
    return {**scope, "path": unquote(path), "raw_path": path.encode(), "headers": headers}
