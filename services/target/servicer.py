"""The gRPC service of a target replica: its streams and their metrics."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from fly.errors import InvalidRequest
from fly.limits import check_distributions
from fly.messages import Extend, Load, Open, Opened, Queued, Role, Verification, VerifyStep
from fly.sequence import SequenceUpdate
from fly.types import Coupling, SparseDistribution
from protos.flyserve.v1 import common_pb2, target_pb2_grpc
from protos.wire.streams import info_to_wire, verify_request_from_wire, verify_response_to_wire
from services.common.host import Host, Service
from services.common.security.access_policy import AccessPolicy, service_access_policy
from services.common.security.identity import ROUTER, Identity
from services.common.telemetry.instrumented_stream import StreamTelemetry, VerifySteps
from services.common.telemetry.process import Telemetry
from services.engine.base import Job, Scores
from services.engine.config import StartFollowers
from services.engine.engine import Engine
from services.engine.factory import build_engine
from services.engine.future import WaitReport
from services.engine.metrics import EngineMetrics
from services.engine.sequence import EngineSequence
from services.engine.sharding.follower import spawn_followers
from services.target.config import TargetConfig


class TargetMetrics(EngineMetrics[Verification]):
    """The metrics of a target."""

    def __init__(self, registry: CollectorRegistry, load: Callable[[], Load]) -> None:
        """Register the metrics; `load` is called when Prometheus scrapes."""
        super().__init__(registry, Role.TARGET, load)
        self._verified = Counter(
            "flyserve_verified_positions_total", "Positions that the target scored.", registry=registry
        )

    def record_step(self, answer: Verification, seconds: float) -> None:
        super().record_step(answer, seconds)
        self._verified.inc(len(answer.choices))


class VerifySession:
    """Applies steps to an engine sequence and scores its last positions."""

    def __init__(self, engine: Engine, sequence: EngineSequence, report: WaitReport) -> None:
        """Serve an open sequence; call `report` when a step has to wait for memory."""
        self._engine = engine
        self._sequence = sequence
        self._report = report

    async def step(self, step: VerifyStep | Extend) -> Verification:
        """Apply the update of a step; score its drafts, or decode after it."""
        scores, times = await self._engine.run_timed(
            self._job(step), self._sequence.opening.priority, self._report
        )
        return Verification(
            step_id=step.update.step_id,
            choices=scores.choices,
            entropies=scores.entropies,
            excluded_drafts=frozenset(
                index for index, is_excluded in enumerate(scores.excluded) if is_excluded
            ),
            logprobs=scores.logprobs,
            times=times,
            load=self._engine.load(),
        )

    async def finish(self, last: SequenceUpdate) -> None:
        """Do nothing: a target stores nothing of finished sequences."""

    def _job(self, step: VerifyStep | Extend) -> Job[Scores]:
        """Apply the update of a step and return its work."""
        length = step.update.keep + len(step.update.tokens)
        if isinstance(step, Extend):
            if step.max_tokens < 1 or length < 1:
                raise InvalidRequest.of(
                    "max_tokens", f"is {step.max_tokens} after {length} tokens, both must be at least 1"
                )
            self._sequence.apply(step.update)
            return self._sequence.decode(step.max_tokens)
        if step.num_drafts >= length:
            raise InvalidRequest.of("num_drafts", f"is {step.num_drafts}, must be below {length}, the length")
        self._sequence.apply(step.update)
        return self._sequence.score(step.num_drafts + 1, self._proposals(step))

    def _proposals(self, step: VerifyStep) -> tuple[SparseDistribution, ...]:
        """Return the distributions of the drafts, if the sequence's coupling needs them."""
        sampling = self._sequence.opening.sampling
        if sampling.coupling is not Coupling.REJECTION or sampling.temperature == 0:
            return ()
        drafts = self._sequence.tokens.ids[len(self._sequence) - step.num_drafts :]
        if faults := [*check_distributions(step.distributions, drafts, self._engine.info.vocab_size)]:
            raise InvalidRequest(*faults)
        return step.distributions


SERVICE_NAME = "flyserve.v1.Target"


class TargetServicer(target_pb2_grpc.TargetServicer):
    """Serves verification streams from one engine."""

    def __init__(self, engine: Engine, telemetry: StreamTelemetry[VerifyStep | Extend, Verification]) -> None:
        self._engine = engine
        self._telemetry = telemetry

    async def Info(self, request: common_pb2.InfoRequest, context: Any) -> common_pb2.InfoResponse:
        return info_to_wire(self._engine.info, self._engine.load())

    async def Verify(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        async def report(notice: Queued | Opened) -> None:
            await context.write(verify_response_to_wire(notice))

        open_session = partial(self._open, report)
        await self._telemetry.serve(
            request_iterator, context, verify_request_from_wire, open_session, verify_response_to_wire
        )

    async def close(self) -> None:
        """Stop the engine."""
        await self._engine.stop()

    @asynccontextmanager
    async def _open(self, report: WaitReport, opening: Open) -> AsyncIterator[VerifySteps]:
        sequence = await self._engine.open(opening, report=report)
        try:
            yield VerifySession(self._engine, sequence, report)
        finally:
            self._engine.close(sequence)


async def create_host(config: TargetConfig, start_followers: StartFollowers | None = None) -> Host:
    """Load the model and return a host that serves it, not yet started.

    `start_followers` starts the followers of a sharded model; child processes by default.

    Raises:
        ConfigError: The certificate cannot be used.
        ModelError: The model is not supported.
    """
    access_policy = service_access_policy(config.security, Identity.of(config.security), ROUTER)
    engine = build_engine(config, None, start_followers or spawn_followers(config))
    await engine.start()
    telemetry = Telemetry(config.telemetry, Role.TARGET.value)
    return host_engine(engine, config.address, access_policy, telemetry)


def host_engine(
    engine: Engine,
    address: str = "127.0.0.1:0",
    access_policy: AccessPolicy | None = None,
    telemetry: Telemetry | None = None,
) -> Host:
    """Return a host for a running engine, not yet started; it stops the engine once it is drained."""
    telemetry = telemetry or Telemetry()
    metrics = TargetMetrics(telemetry.registry, engine.load)
    servicer = TargetServicer(engine, StreamTelemetry("target.verify", telemetry.tracer, metrics))

    register = partial(target_pb2_grpc.add_TargetServicer_to_server, servicer)
    service = Service(SERVICE_NAME, register, servicer.close, engine.failure)
    return Host(service, address, access_policy=access_policy, telemetry=telemetry)
