"""Middleware of every HTTP request: request ids, and errors to responses."""

import asyncio
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fly.errors import NotReady
from router.http.errors import reply_to

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
