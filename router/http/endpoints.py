"""Endpoints of the HTTP API."""

import math
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from flyserve.core.errors import NotReady, quoted
from flyserve.core.limits import MOST_TIMEOUT_S
from flyserve.core.version import VERSION
from router.config import RouterConfig
from router.cost import off_loop
from router.http.api_format import ApiFormat
from router.http.connection import while_connected
from router.http.errors import Rejected
from router.http.json_body import JsonBody, read_object
from router.http.models import ServedModels
from router.http.objects import Health, ModelList, ResponseModel, Version
from router.http.responder import Responder
from router.security.callers import current_caller
from router.security.quotas import Quotas
from router.service import GenerationService
from services.common.telemetry.tracing import TRACEPARENT

TIMEOUT = "X-Request-Timeout"


class Generate:
    """Endpoint that generates text, in one API format."""

    def __init__(
        self,
        service: GenerationService,
        api_format: ApiFormat,
        config: RouterConfig,
        quotas: Quotas,
        responder: type[Responder] = Responder,
    ) -> None:
        self._service = service
        self._format = api_format
        self._responder = responder
        self._config = config
        self._quotas = quotas
        self._models = ServedModels(service, config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await read_object(request, self._config.http)
        await while_connected(receive, self._respond(request, body, send))

    async def _respond(self, request: Request, body: JsonBody, send: Send) -> None:
        self._models.check(body.fields.get("model"))
        request_id: str = request.state.request_id
        parsed = await off_loop(body.cost_s, partial(self._format.parse, body.fields, request_id))
        parsed = self._models.addressed(parsed)
        limits_s = [limit_s for limit_s in (_timeout_s(request), parsed.body.timeout) if limit_s is not None]
        respond = self._responder(
            self._service,
            self._format,
            parsed,
            request_id,
            timeout_s=min(limits_s, default=None),
            traceparent=request.headers.get(TRACEPARENT, ""),
            sends_metrics=self._config.http.speculation_metrics,
        )
        with self._quotas.batch(current_caller(), len(parsed.requests)):
            await respond(request.scope, request.receive, send)


class InfoEndpoints:
    """Endpoints that describe the deployment."""

    def __init__(self, service: GenerationService, config: RouterConfig) -> None:
        self._service = service
        self._models = ServedModels(service, config)

    async def models(self, request: Request) -> Response:
        return send_json(ModelList(object="list", data=await self._models.listed()))

    async def model(self, request: Request) -> Response:
        name = request.path_params["model"]
        self._models.require(name)
        return send_json(await self._models.described(name))

    async def health(self, request: Request) -> Response:
        if not self._service.is_ready:
            raise NotReady("no target replica is available")
        return send_json(Health(status="ready"))

    async def version(self, request: Request) -> Response:
        return send_json(Version(version=VERSION))

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{model:path}", self.model, methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/version", self.version, methods=["GET"]),
        ]


def _timeout_s(request: Request) -> float | None:
    said = request.headers.get(TIMEOUT)
    if said is None:
        return None
    try:
        timeout_s = float(said)
    except ValueError:
        timeout_s = math.nan
    if not 0 < timeout_s <= MOST_TIMEOUT_S:
        allowed = f"must be seconds above 0 and at most {MOST_TIMEOUT_S:g}"
        raise Rejected(400, f"{TIMEOUT} is {quoted(said)}, {allowed}", TIMEOUT, "invalid_value")
    return timeout_s


def send_json(content: ResponseModel) -> Response:
    """Return the response with an object."""
    return Response(content.to_json(), media_type="application/json")
