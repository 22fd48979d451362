"""The gRPC service of a drafter replica: its streams and their metrics."""

from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from flyserve.core.clock import SystemClock
from flyserve.core.messages import Draft, DraftStep, Load, Opened, Queued, Role
from flyserve.v1 import common_pb2, drafter_pb2_grpc
from flyserve.wire.batches import DRAFT
from flyserve.wire.streams import draft_request_from_wire, draft_response_to_wire, info_to_wire
from services.common.blocking import in_daemon_thread
from services.common.endpoint_sources import EndpointSource, ListedEndpointSource, RegistryEndpointSource
from services.common.host import Host, Service
from services.common.security.access_policy import AccessPolicy, service_access_policy
from services.common.security.identity import ROUTER, Identity
from services.common.shared_stream.server import Send, SharedStreams
from services.common.telemetry.buckets import TOKENS
from services.common.telemetry.instrumented_stream import StreamTelemetry
from services.common.telemetry.process import Telemetry
from services.drafter.ahead import DraftingLimits
from services.drafter.builtin import BuiltinDrafter
from services.drafter.config import AnyDrafterConfig
from services.drafter.standalone import StandaloneDrafter
from services.drafter.sub_drafters import SubDrafters
from services.drafter.vocabulary.start import map_vocabulary
from services.engine.engine import Engine
from services.engine.factory import build_engine
from services.engine.interface import DrafterEngine
from services.engine.metrics import EngineMetrics, register_model
from services.lookup.index.budget import IndexBudget
from services.lookup.index_metrics import register_index_metrics


class DrafterMetrics(EngineMetrics[Draft]):
    """The metrics of a drafter."""

    def __init__(
        self,
        registry: CollectorRegistry,
        role: Role,
        load: Callable[[], Load],
        budget: IndexBudget,
        level_gains: Mapping[str, Callable[[], float]],
    ) -> None:
        """Register the metrics; `load` and `level_gains` are called, `budget` is read, at each scrape."""
        super().__init__(registry, role, load)
        register_index_metrics(registry, role, budget)
        self._drafted = self._histogram(
            "flyserve_drafted_tokens", "Tokens per draft; the sum counts all of them.", TOKENS
        )
        self._forwards = self._counter(
            "flyserve_draft_forwards_total", "Forwards of the drafter's model whose result was returned."
        )
        self._sub_drafter_tokens = self._counter(
            "flyserve_sub_drafter_tokens_total", "Draft tokens that the sub-drafter supplied."
        )
        self._proposals = self._counters(
            "flyserve_proposals_total",
            "Requests to the sub-drafter, and responses that were not used: late, invalid.",
            "outcome",
            ("requested", "late", "invalid"),
        )
        self._ahead = self._counters(
            "flyserve_ahead_tokens_total",
            "Tokens drafted before they were requested: hit if the next step confirmed them, else dropped.",
            "outcome",
            ("hit", "dropped"),
        )

        gain = Gauge(
            "flyserve_level_gain_ratio",
            "Factor by which rounds with this level of drafting are faster; 1 without data, unused below it.",
            ("level",),
            registry=registry,
        )
        for level, function in level_gains.items():
            gain.labels(level).set_function(function)

    def record_step(self, answer: Draft, seconds: float) -> None:
        super().record_step(answer, seconds)
        self._drafted.observe(len(answer.tokens))
        self._forwards.inc(answer.forwards)
        self._sub_drafter_tokens.inc(answer.sub_drafter_tokens)
        for outcome, counter in self._proposals.items():
            counter.inc(getattr(answer.proposals, outcome))
        self._ahead["hit"].inc(answer.drafted_ahead)
        self._ahead["dropped"].inc(answer.dropped_ahead)


SERVICE_NAME = "flyserve.v1.Drafter"


class DrafterServicer(drafter_pb2_grpc.DrafterServicer):
    """Serves drafting streams from one engine."""

    def __init__(self, engine: DrafterEngine, telemetry: StreamTelemetry[DraftStep, Draft]) -> None:
        self.streams = SharedStreams(DRAFT, self._serve)
        self._engine = engine
        self._telemetry = telemetry

    async def Info(self, request: common_pb2.InfoRequest, context: Any) -> common_pb2.InfoResponse:
        return info_to_wire(self._engine.info, self._engine.load())

    async def DraftBatches(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        await self.streams.serve(request_iterator, context)

    async def _serve(self, requests: AsyncIterator[Any], send: Send) -> None:
        """Serve one sequence."""

        async def report(notice: Queued | Opened) -> None:
            await send(draft_response_to_wire(notice))

        open_session = partial(self._engine.open, report=report)
        await self._telemetry.serve(
            requests, send, draft_request_from_wire, open_session, draft_response_to_wire
        )

    async def close(self) -> None:
        """Stop the engine."""
        await self._engine.stop()


async def create_host(config: AnyDrafterConfig) -> Host:
    """Load the model and return a host that serves it, not yet started.

    Raises:
        ConfigError: The certificate is invalid, or an argument of vLLM.
        ModelError: The model cannot be served, or vLLM is not installed.
    """
    identity = Identity.of(config.security)
    access_policy = service_access_policy(config.security, identity, ROUTER)
    engine = await _start_engine(config, identity)
    telemetry = Telemetry(config.telemetry, config.role)
    mapped = await in_daemon_thread(partial(map_vocabulary, engine, config))
    standalone = StandaloneDrafter(mapped, config.standalone_limit if mapped is engine else 0)
    return host_drafter(standalone, config.address, access_policy, telemetry)


async def _start_engine(config: AnyDrafterConfig, identity: Identity | None) -> DrafterEngine:
    engine = await in_daemon_thread(partial(build_engine, config))
    await engine.start()
    budget = IndexBudget(config.lookup_index_tokens)
    sub_drafters = SubDrafters(_source(config, identity), identity, budget)
    await sub_drafters.start()
    return BuiltinDrafter(engine, sub_drafters, config.limits)


def host_engine(
    engine: Engine,
    sub_drafters: SubDrafters,
    limits: DraftingLimits | None = None,
    telemetry: Telemetry | None = None,
    standalone_sequences: int = 0,
) -> Host:
    """Return a host for a running builtin or simulated engine, as `host_drafter` does."""
    limits = limits or DraftingLimits()
    drafter = BuiltinDrafter(engine, sub_drafters, limits)
    standalone = StandaloneDrafter(drafter, standalone_sequences)
    return host_drafter(standalone, telemetry=telemetry)


def host_drafter(
    engine: DrafterEngine,
    address: str = "127.0.0.1:0",
    access_policy: AccessPolicy | None = None,
    telemetry: Telemetry | None = None,
) -> Host:
    """Return a host that serves a running engine, not yet started; draining it stops the engine."""
    telemetry, role = telemetry or Telemetry(), engine.info.role
    register_model(telemetry.registry, engine.info)
    metrics = DrafterMetrics(telemetry.registry, role, engine.load, engine.index_budget, engine.level_gains)
    streams = StreamTelemetry[DraftStep, Draft](f"{role.value}.draft", telemetry.tracer, metrics)
    servicer = DrafterServicer(engine, streams)

    register = partial(drafter_pb2_grpc.add_DrafterServicer_to_server, servicer)
    service = Service(SERVICE_NAME, register, servicer.close, engine.failure, servicer.streams.drain)
    return Host(service, address, access_policy=access_policy, telemetry=telemetry)


def _source(config: AnyDrafterConfig, identity: Identity | None) -> EndpointSource | None:
    if config.registry is not None:
        return RegistryEndpointSource(config.registry, SystemClock(), identity)
    if config.sub_drafter is not None:
        return ListedEndpointSource({Role.SUB_DRAFTER: [config.sub_drafter]}, SystemClock())
    return None
