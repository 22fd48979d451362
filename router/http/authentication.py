"""Authentication of HTTP requests by API key."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from router.security.callers import AUTHORIZATION, set_caller
from router.security.keys import Keys

_OPEN = frozenset({"/", "/health", "/version", "/openapi.json"})
_ASSETS = "/playground/"
_SETTINGS = "/playground/settings.json"


class Authentication:
    """Middleware that requires an API key, except for health, version, and static pages."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or raise Unauthenticated."""
        if not is_open(scope["path"]):
            said = Headers(scope=scope).getlist(AUTHORIZATION)
            # NOTE: of two, a proxy before us may have looked at the other.
            set_caller(self._keys.caller(said[0] if len(said) == 1 else ""))
        await self._app(scope, receive, send)


def is_open(path: str) -> bool:
    """Return True if a path needs no API key."""
    return path in _OPEN or (path.startswith(_ASSETS) and path != _SETTINGS)
