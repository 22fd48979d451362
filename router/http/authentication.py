"""Lets requests in that bring a known API key."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from router.security.callers import AUTHORIZATION, set_caller
from router.security.keys import Keys

_OPEN = frozenset({"/", "/health", "/version", "/openapi.json"})
_ASSETS = "/playground/"
_SETTINGS = "/playground/settings.json"


class Authentication:
    """Asks for an API key, but for health, version, and pages that say nothing of a deployment."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or raises Unauthenticated."""
        if not is_open(scope["path"]):
            said = Headers(scope=scope).getlist(AUTHORIZATION)
            # NOTE: of two, a proxy before us may have looked at the other.
            set_caller(self._keys.caller(said[0] if len(said) == 1 else ""))
        await self._app(scope, receive, send)


def is_open(path: str) -> bool:
    """Whether everybody may have what is at this path."""
    return path in _OPEN or (path.startswith(_ASSETS) and path != _SETTINGS)
