"""The gRPC service of a sub-drafter with a look-up engine: its streams and their metrics."""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from fly.errors import InvalidRequest
from fly.lookup.budget import IndexBudget
from fly.lookup.response_cache import END
from fly.messages import Draft, DraftStep, Load, ModelInfo, Open, Role
from fly.sequence import ReplicatedSequence, SequenceUpdate, StaleState
from fly.version import VERSION
from protos.flyserve.v1 import common_pb2, drafter_pb2_grpc
from protos.wire.streams import draft_request_from_wire, draft_response_to_wire, info_to_wire
from services.common.host import Host, Service
from services.common.security.access_policy import service_access_policy
from services.common.security.identity import Identity, certificate_name
from services.common.telemetry.buckets import TOKENS
from services.common.telemetry.index_metrics import register_index_metrics
from services.common.telemetry.instrumented_stream import DraftSteps, StepMetrics, StreamTelemetry
from services.common.telemetry.process import Telemetry
from services.sub_drafter.config import SubDrafterConfig
from services.sub_drafter.engines import build_engine
from services.sub_drafter.engines.base import SequenceLookup


class SubDrafterMetrics(StepMetrics[Draft]):
    """The metrics of a sub-drafter."""

    def __init__(self, registry: CollectorRegistry, load: Callable[[], Load], budget: IndexBudget) -> None:
        """Register the metrics; `load` is called, and `budget` read, when Prometheus scrapes."""
        super().__init__(registry, Role.SUB_DRAFTER)
        register_index_metrics(registry, Role.SUB_DRAFTER, budget)

        def gauge(name: str, help: str, read: Callable[[Load], int]) -> None:
            metric = Gauge(name, help, ("role",), registry=registry)
            metric.labels(Role.SUB_DRAFTER.value).set_function(lambda: read(load()))

        gauge("flyserve_sequences_open", "Open sequences.", lambda load: load.sequences)
        gauge(
            "flyserve_response_cache_used_tokens",
            "Tokens of finished responses in the cache.",
            lambda load: load.kv_used,
        )
        gauge(
            "flyserve_response_cache_capacity_tokens",
            "Tokens of finished responses that the cache can hold.",
            lambda load: load.kv_capacity,
        )
        self._proposed = Histogram(
            "flyserve_proposed_tokens",
            "Tokens per proposal; the sum counts all of them.",
            registry=registry,
            buckets=TOKENS,
        )
        self._snippets = Counter(
            "flyserve_snippet_tokens_total", "Tokens of snippets sent to drafters.", registry=registry
        )

    def record_step(self, answer: Draft, seconds: float) -> None:
        super().record_step(answer, seconds)
        self._proposed.observe(len(answer.tokens))
        self._snippets.inc(sum(map(len, answer.snippets)))


_LEAD_IN = 4
"""Last tokens of a prompt that are cached with its response, so that its beginning can be looked up."""


class LookupSession:
    """The server's copy of one sequence, and its look-up."""

    def __init__(self, lookup: SequenceLookup, prompt_length: int, max_tokens: int) -> None:
        """Start with an empty sequence, which may have at most `max_tokens` tokens."""
        self._sequence = ReplicatedSequence(vocab_size=END, context_length=max_tokens)
        self._lookup = lookup
        self._prompt_length = prompt_length
        self._num_indexed = 0

    async def step(self, step: DraftStep) -> Draft:
        """Apply the update and return a proposal, and snippets if they are requested."""
        sequence = self._sequence
        unchanged = sequence.apply(step.update)
        # NOTE: the proposal becomes part of the sequence, as the client assumes, but is not indexed.
        self._lookup.update(sequence.tokens.ids, min(unchanged, self._num_indexed))
        self._num_indexed = len(sequence)
        snippets = self._lookup.snippets(step.snippet_tokens) if step.snippet_tokens else ()
        proposal = self._lookup.propose(step.max_tokens)
        sequence.tokens.extend(proposal.tokens)
        return Draft(
            step.update.step_id,
            proposal.tokens,
            match_length=proposal.match_length,
            confidence=proposal.confidence,
            snippets=tuple(snippets),
        )

    async def finish(self, last: SequenceUpdate) -> None:
        """Apply the last update; ignore one that cannot be applied."""
        with contextlib.suppress(StaleState, InvalidRequest):
            self._sequence.apply(last)

    def close(self) -> None:
        """Cache the decided tokens of the response, even if the stream broke."""
        start = max(0, self._prompt_length - _LEAD_IN)
        decided = self._sequence.decided
        self._lookup.finish(self._sequence.tokens.ids[start:decided] if decided > self._prompt_length else ())


SERVICE_NAME = "flyserve.v1.Drafter"


class SubDrafterServicer(drafter_pb2_grpc.DrafterServicer):
    """Look-up sessions of one engine."""

    def __init__(self, config: SubDrafterConfig, telemetry: Telemetry) -> None:
        self._config = config
        budget = IndexBudget(config.lookup_index_tokens)
        self._engine = build_engine(config, budget)
        self._num_open = 0
        metrics = SubDrafterMetrics(telemetry.registry, self._load, budget)
        self._telemetry = StreamTelemetry[DraftStep, Draft](
            f"{Role.SUB_DRAFTER.value}.draft", telemetry.tracer, metrics
        )

    async def Info(self, request: common_pb2.InfoRequest, context: Any) -> common_pb2.InfoResponse:
        info = ModelInfo(
            role=Role.SUB_DRAFTER,
            model_id=self._config.engine,
            weight_fingerprint="",
            architecture=self._config.engine,
            token_map_hash="",
            vocab_size=0,
            context_length=self._config.max_tokens,
            dtype="",
            shards=1,
            kv_capacity=self._engine.response_cache_capacity,
            version=VERSION,
        )
        return info_to_wire(info, self._load())

    async def Draft(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        await self._telemetry.serve(
            request_iterator, context, draft_request_from_wire, self._open, draft_response_to_wire
        )

    async def close(self) -> None:
        """Do nothing: the cache is freed with the process."""

    def _load(self) -> Load:
        return Load(
            sequences=self._num_open,
            kv_used=self._engine.response_cache_tokens,
            kv_capacity=self._engine.response_cache_capacity,
        )

    @asynccontextmanager
    async def _open(self, opening: Open) -> AsyncIterator[DraftSteps]:
        lookup = self._engine.open(opening)
        session = LookupSession(
            lookup=lookup, prompt_length=opening.prompt_length, max_tokens=self._config.max_tokens
        )
        self._num_open += 1
        try:
            yield session
        finally:
            session.close()
            self._num_open -= 1


async def create_host(config: SubDrafterConfig) -> Host:
    """Return a host that serves this configuration, not yet started.

    Raises:
        ConfigError: The certificate is invalid.
    """
    access_policy = service_access_policy(
        config.security, Identity.of(config.security), certificate_name(Role.DRAFTER)
    )
    telemetry = Telemetry(config.telemetry, Role.SUB_DRAFTER.value)
    servicer = SubDrafterServicer(config, telemetry)

    register = partial(drafter_pb2_grpc.add_DrafterServicer_to_server, servicer)
    service = Service(SERVICE_NAME, register, servicer.close)
    return Host(service, config.address, access_policy=access_policy, telemetry=telemetry)
