"""Assemble the HTTP application."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router.config import RouterConfig
from router.http.chat import Chat
from router.http.completions import Completions
from router.http.endpoints import Generate, InfoEndpoints
from router.http.errors import reply_to
from router.http.metrics_page import MetricsPage
from router.http.middleware import (
    REQUEST_ID,
    AllowedHosts,
    Authentication,
    ErrorMiddleware,
    Metering,
    RequestIds,
)
from router.http.openapi import openapi_document
from router.http.playground.routes import playground_routes
from router.http.request_form import Expectations, RequestForm
from router.http.responses.responder import ResponsesFormat, ResponsesResponder
from router.http.tokenization import TokenizationEndpoints
from router.model_files import ModelFiles
from router.security.keys import Keys
from router.security.quotas import Quotas
from router.service import GenerationService
from services.common.security.access_policy import is_loopback


def create_app(
    service: GenerationService,
    config: RouterConfig,
    model: ModelFiles,
    registry: CollectorRegistry,
    quotas: Quotas,
    keys: Keys | None = None,
) -> Starlette:
    """Return the application; without `keys` it accepts every caller.

    `registry` has the metrics of the router.
    """
    defaults = model.sampling_defaults
    completions = Generate(service, Completions(service, defaults, config.limits), config, quotas)
    chat = Generate(service, Chat(service, defaults, config.limits), config, quotas)
    responses_format = ResponsesFormat(service, defaults, config.limits)
    responses = Generate(service, responses_format, config, quotas, ResponsesResponder)
    document = openapi_document(config.served_name)

    async def openapi(request: Request) -> Response:
        return Response(document, media_type="application/json")

    routes = [
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/responses", responses, methods=["POST"]),
        *InfoEndpoints(service, config).routes,
        *TokenizationEndpoints(service, config).routes,
        Route("/openapi.json", openapi, methods=["GET"]),
        Route("/metrics", MetricsPage(registry).send, methods=["GET"]),
        *playground_routes(config, model),
    ]
    handlers = {HTTPException: _reject}
    app = Starlette(routes=routes, middleware=_middleware(config, quotas, keys), exception_handlers=handlers)
    # NOTE: it would redirect to whatever host the request names.
    app.router.redirect_slashes = False
    return app


def _middleware(config: RouterConfig, quotas: Quotas, keys: Keys | None) -> list[Middleware]:
    """Return the middleware from the outermost to the innermost; errors of authentication are caught, too."""
    origins = config.http.cors_origins
    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=[REQUEST_ID, "Retry-After"],
    )
    authentication = [] if keys is None else [Middleware(Authentication, keys=keys)]
    hosts = config.http.allowed_hosts or _own_hosts(config)
    return [
        Middleware(RequestIds),
        Middleware(Expectations),
        *([cors] if origins else []),
        Middleware(ErrorMiddleware),
        Middleware(RequestForm),
        *([Middleware(AllowedHosts, hosts=hosts)] if hosts else []),
        *authentication,
        Middleware(Metering, quotas=quotas, max_body_bytes=config.http.max_body_bytes),
    ]


def _own_hosts(config: RouterConfig) -> Sequence[str]:
    """Return the names of a router on loopback that nothing else protects from web pages; none otherwise.

    A page whose name was pointed at loopback has neither a key nor a name of the certificate.
    """
    is_protected = config.security.auth_tokens_file is not None or config.security.tls is not None
    if is_protected or not is_loopback(config.host):
        return ()
    return (*_LOOPBACK_NAMES, config.host.lower())


_LOOPBACK_NAMES = ("localhost", "*.localhost", "127.0.0.1", "[::1]")


async def _reject(request: Request, error: Exception) -> Response:
    return reply_to(error).response
