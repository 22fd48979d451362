"""Serves the playground's page, its assets, and its settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from flyserve.core.types import FlyRule
from router.config import RouterConfig
from router.model_files import ModelFiles

DEMO_TOKENS = "8e830d8de2606b39a6ecc4b33a4c4ea2"
"""Hash of the token map of the demo's target, which solves problems of its own kinds only."""
_STATIC = Path(__file__).parent / "static"
_PAGE = "index.html"
_MOUNT = "/playground"
ASSETS = frozenset(
    f"{_MOUNT}/{file.relative_to(_STATIC).as_posix()}" for file in _STATIC.rglob("*") if file.is_file()
)
"""Paths of the page's files, which are the same in every deployment."""
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
_HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {source}" for name, source in _POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Cached, but revalidated each time: assets have no version in their names. The response is mostly a 304.
    "Cache-Control": "no-cache",
}


def playground_routes(config: RouterConfig, model: ModelFiles) -> list[BaseRoute]:
    """Return the routes: the page at `/`, everything else under `/playground/`."""
    files = _Files(directory=_STATIC)
    settings = page_settings(config, model)

    async def page(request: Request) -> Response:
        return await files.get_response(_PAGE, request.scope)

    async def send_settings(request: Request) -> Response:
        return JSONResponse(settings, headers=_HEADERS)

    return [
        Route("/", page),
        Route(f"{_MOUNT}/settings.json", send_settings),
        Mount(_MOUNT, files),
    ]


def page_settings(config: RouterConfig, model: ModelFiles) -> dict[str, Any]:
    """Return presets, defaults and limits, which the page shows and enforces, and facts about the model."""
    default, plan, limits = config.speculation, config.speculation.plan, config.limits
    return {
        "is_demo": model.token_map_hash == DEMO_TOKENS,
        "has_chat_template": model.chat_template.is_present,
        "presets": {name: _rule(rule) for name, rule in default.rules.items()},
        "defaults": {
            "mode": default.mode,
            "sub_drafter": plan.sub_drafter,
            "draft_length": {"max": default.draft_length.max},
            "rule": _rule(default.rule),
        },
        "limits": {"max_new_tokens": limits.max_new_tokens, "draft_length": limits.draft_length},
    }


def _rule(rule: FlyRule) -> Mapping[str, Any]:
    return {
        "window": rule.window,
        "threshold": rule.threshold,
        "tail": rule.tail,
        "entropy": rule.entropy,
    }


class _Files(StaticFiles):
    """Static files, each with the security headers."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        return response
