"""The gRPC service of a look-up engine, as sub-drafter or as drafter: its streams and their metrics."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from flyserve.core.errors import InvalidRequest, Overloaded
from flyserve.core.messages import Draft, DraftStep, ForwardCosts, Load, ModelInfo, Open, Role
from flyserve.core.version import VERSION
from flyserve.v1 import common_pb2, drafter_pb2_grpc
from flyserve.wire.batches import DRAFT
from flyserve.wire.streams import draft_request_from_wire, draft_response_to_wire, info_to_wire
from services.common.host import Host, Service
from services.common.security.access_policy import service_access_policy
from services.common.security.identity import ROUTER, Identity, certificate_name
from services.common.shared_stream.server import Send, SharedStreams
from services.common.telemetry.buckets import TOKENS
from services.common.telemetry.instrumented_stream import DraftSteps, StepMetrics, StreamTelemetry
from services.common.telemetry.process import Telemetry
from services.lookup.config import SuffixConfig
from services.lookup.engine import SuffixEngine
from services.lookup.index.budget import IndexBudget
from services.lookup.index_metrics import register_index_metrics
from services.lookup.session import LookupSession


class LookupMetrics(StepMetrics[Draft]):
    """The metrics of a look-up engine."""

    def __init__(
        self,
        registry: CollectorRegistry,
        role: Role,
        load: Callable[[], Load],
        engine: SuffixEngine,
        budget: IndexBudget,
    ) -> None:
        """Register the metrics; `load` is called, `engine` and `budget` are read, when Prometheus scrapes."""
        super().__init__(registry, role)
        register_index_metrics(registry, role, budget)

        def gauge(name: str, help: str, read: Callable[[], int]) -> None:
            Gauge(name, help, ("role",), registry=registry).labels(role.value).set_function(read)

        gauge("flyserve_sequences_open", "Open sequences.", lambda: load().sequences)
        gauge(
            "flyserve_response_cache_used_tokens",
            "Tokens of finished responses in the cache.",
            lambda: engine.response_cache_tokens,
        )
        gauge(
            "flyserve_response_cache_capacity_tokens",
            "Tokens of finished responses that the cache can hold.",
            lambda: engine.response_cache_capacity,
        )
        self._proposed = self._histogram(
            "flyserve_proposed_tokens", "Tokens per proposal by look-up; the sum counts all of them.", TOKENS
        )
        self._snippets = self._counter(
            "flyserve_snippet_tokens_total", "Tokens of snippets sent to drafters."
        )

    def record_step(self, answer: Draft, seconds: float) -> None:
        super().record_step(answer, seconds)
        self._proposed.observe(len(answer.tokens))
        self._snippets.inc(sum(map(len, answer.snippets)))


SERVICE_NAME = "flyserve.v1.Drafter"

_PAUSE_S = 0.004
"""Time for other work between two parts of finished responses: they take about a third of the event loop."""


class LookupServicer(drafter_pb2_grpc.DrafterServicer):
    """Look-up sessions of one engine."""

    def __init__(self, config: SuffixConfig, telemetry: Telemetry) -> None:
        self._config = config
        self._budget = IndexBudget(config.lookup_index_tokens)
        self._engine = SuffixEngine(config.response_cache_tokens, self._budget)
        self.streams = SharedStreams(DRAFT, self._serve)
        self._num_open = 0
        self._linking: asyncio.Task[None] | None = None
        self._is_closed = False
        metrics = LookupMetrics(telemetry.registry, config.role, self._load, self._engine, self._budget)
        self._telemetry = StreamTelemetry[DraftStep, Draft](f"{config.role}.draft", telemetry.tracer, metrics)

    async def Info(self, request: common_pb2.InfoRequest, context: Any) -> common_pb2.InfoResponse:
        info = ModelInfo(
            role=self._config.role,
            model_id=self._config.engine,
            weight_fingerprint="",
            architecture=self._config.engine,
            token_map_hash="",
            vocab_size=0,
            context_length=self._config.max_tokens,
            dtype="",
            shards=1,
            kv_capacity=self._capacity,
            version=VERSION,
            max_sequences=self._config.max_sequences,
            costs=ForwardCosts(decode_s=0.0, verify_s=0.0),
        )
        return info_to_wire(info, self._load())

    async def DraftBatches(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        await self.streams.serve(request_iterator, context)

    async def _serve(self, requests: AsyncIterator[Any], send: Send) -> None:
        """Serve one sequence."""
        await self._telemetry.serve(
            requests, send, draft_request_from_wire, self._open, draft_response_to_wire
        )

    async def close(self) -> None:
        """End the linking of responses; the cache is freed with the process."""
        self._is_closed = True
        if self._linking is not None:
            self._linking.cancel()
            await asyncio.gather(self._linking, return_exceptions=True)

    @property
    def _capacity(self) -> int:
        """Tokens that indexes and cache can hold; at least 1, because 0 stands for an unknown load."""
        return max(1, self._budget.max_tokens + self._engine.response_cache_capacity)

    def _load(self) -> Load:
        return Load(
            sequences=self._num_open,
            kv_used=self._budget.num_tokens,
            kv_capacity=self._capacity,
            kv_cached=self._engine.response_cache_tokens,
        )

    @asynccontextmanager
    async def _open(self, opening: Open) -> AsyncIterator[DraftSteps]:
        if opening.standalone:
            raise InvalidRequest.of(
                "standalone", "is set, but this drafter looks tokens up and runs no model"
            )
        most = self._config.max_sequences
        if most and self._num_open >= most:
            raise Overloaded(f"all {most} places are taken (max_sequences)")
        session = LookupSession(self._engine.open(opening), opening, self._config)
        self._num_open += 1
        try:
            yield session
        finally:
            session.close()
            self._num_open -= 1
            self._start_linking()

    def _start_linking(self) -> None:
        """Start the one task that links finished responses, unless it runs."""
        if not self._is_closed and (self._linking is None or self._linking.done()):
            self._linking = asyncio.create_task(self._link(), name="responses")

    async def _link(self) -> None:
        """Link the finished responses, in parts."""
        while self._engine.link():
            await asyncio.sleep(_PAUSE_S)


async def create_host(config: SuffixConfig) -> Host:
    """Return a host that serves this configuration, not yet started.

    Raises:
        ConfigError: The certificate is invalid.
    """
    caller = ROUTER if config.role is Role.DRAFTER else certificate_name(Role.DRAFTER)
    access_policy = service_access_policy(config.security, Identity.of(config.security), caller)
    telemetry = Telemetry(config.telemetry, config.role.value)
    servicer = LookupServicer(config, telemetry)

    register = partial(drafter_pb2_grpc.add_DrafterServicer_to_server, servicer)
    service = Service(SERVICE_NAME, register, servicer.close, drain=servicer.streams.drain)
    return Host(service, config.address, access_policy=access_policy, telemetry=telemetry)
