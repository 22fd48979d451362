"""Middleware of every HTTP request: request ids, errors to responses, hosts, API keys, quotas."""

import asyncio
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flyserve.core.errors import NotReady, quoted
from router.http.errors import Rejected, reply_to
from router.http.playground.routes import ASSETS
from router.security.callers import AUTHORIZATION, current_caller, set_caller
from router.security.keys import Keys
from router.security.peers import current_tenant, set_peer
from router.security.quotas import Quotas

REQUEST_ID = "X-Request-Id"


class RequestIds:
    """Middleware that gives every request, and its response, an id: the client's own if it has one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = Headers(scope=scope).get(REQUEST_ID) or uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


class ErrorMiddleware:
    """Middleware that sends an error object for an exception before the response has begun."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
            return
        except ClientDisconnect:
            return
        except asyncio.CancelledError:
            # Only a stop that has waited long enough cancels: the connection is closed next.
            reply = reply_to(NotReady("the router is stopping"))
        except Exception as error:
            reply = reply_to(error)
        if not has_begun:
            await reply.response(scope, receive, send)


class AllowedHosts:
    """Middleware that rejects requests for other hosts than some, as `TrustedHostMiddleware` decides.

    That one's own response is no error object and names no key of the configuration.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        """Accept these hosts, in the patterns of `TrustedHostMiddleware`."""
        self._app = app
        self._decide = TrustedHostMiddleware(_accept, hosts, www_redirect=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or raise Rejected."""
        decision = {**scope, _IS_TRUSTED: False}
        await self._decide(decision, receive, _discard)
        if not decision[_IS_TRUSTED]:
            said = quoted(Headers(scope=scope).get("host", ""))
            remedy = "add the name to router.http.allowed_hosts to serve it"
            raise Rejected(421, f"Host is {said}, which is not served here: {remedy}", "Host", "unknown_host")
        await self._app(scope, receive, send)


_IS_TRUSTED = "flyserve.is_trusted"


async def _accept(scope: Scope, receive: Receive, send: Send) -> None:
    scope[_IS_TRUSTED] = True


async def _discard(message: Message) -> None:
    pass


_OPEN = frozenset({"/", "/health", "/version", "/openapi.json", *ASSETS})


class Authentication:
    """Middleware that requires an API key, except for health, version, and static pages."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or raise Unauthenticated."""
        # NOTE: an exact comparison: a route may match more, such as a path with a line feed at its end.
        if scope["path"] not in _OPEN:
            said = Headers(scope=scope).getlist(AUTHORIZATION)
            # NOTE: of two, a proxy before us may have looked at the other.
            set_caller(self._keys.caller(said[0] if len(said) == 1 else ""))
        await self._app(scope, receive, send)


_FREE = frozenset({"GET", "HEAD", "OPTIONS"})


class Metering:
    """Middleware that counts a request, and the bytes of its body, against quotas before they are read."""

    def __init__(self, app: ASGIApp, quotas: Quotas, max_body_bytes: int) -> None:
        self._app = app
        self._quotas = quotas
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or raise Overloaded."""
        client = scope["client"]
        set_peer(client[0] if client else "")
        if scope["method"] in _FREE:
            await self._app(scope, receive, send)
            return
        # NOTE: a body that is longer than allowed is rejected where it is read; it never takes more.
        announced = min(int(Headers(scope=scope).get("content-length", 0)), self._max_body_bytes)
        with self._quotas.admitted(current_caller(), announced, current_tenant()) as hold:

            async def counting() -> Message:
                message = await receive()
                hold(len(message.get("body", b"")))
                return message

            await self._app(scope, receive if announced else counting, send)
