"""Streams with telemetry: every step is counted and traced, and log lines carry the request's id."""

import time
from typing import Any, Generic, Protocol, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram

from fly.messages import Draft, DraftStep, Open, Role, Verification, VerifyStep
from fly.sequence import SequenceUpdate, StaleReason, StaleState
from services.common.stream_server import Session
from services.common.telemetry.buckets import SECONDS
from services.common.telemetry.logs import name_request
from services.common.telemetry.tracing import Note, StreamTrace, Tracer

Step = TypeVar("Step", bound=VerifyStep | DraftStep)
Answer = TypeVar("Answer", bound=Verification | Draft)

VerifySteps = Session[VerifyStep, Verification]
DraftSteps = Session[DraftStep, Draft]


class StepMetrics(Generic[Answer]):
    """The metrics that every service records about its steps."""

    def __init__(self, registry: CollectorRegistry, role: Role) -> None:
        stale = Counter(
            "flyserve_stale_steps_total",
            "Steps whose sequence had to be replayed, by reason.",
            ("role", "reason"),
            registry=registry,
        )
        self.stale = {reason: stale.labels(role.value, reason.value) for reason in StaleReason}
        self._seconds = Histogram(
            "flyserve_step_seconds",
            "Time from a step's arrival to its answer.",
            ("role",),
            registry=registry,
            buckets=SECONDS,
        ).labels(role.value)

    def record_step(self, answer: Answer, seconds: float) -> None:
        """Count a step that was answered within `seconds`."""
        self._seconds.observe(seconds)


class CallContext(Protocol):
    """The part of a gRPC context that carries the trace."""

    def invocation_metadata(self) -> Any:
        """Return the call's metadata as pairs of key and value."""


class StreamTelemetry(Generic[Answer]):
    """Telemetry of one servicer's streams."""

    def __init__(self, name: str, tracer: Tracer, metrics: StepMetrics[Answer]) -> None:
        """Record steps in `metrics`, and spans called `name`."""
        self._name = name
        self._tracer = tracer
        self._metrics = metrics

    def trace(self, context: CallContext) -> StreamTrace:
        """Return the trace of a call's stream; enter it for as long as the stream lasts."""
        return self._tracer.stream(context.invocation_metadata())

    def instrument(
        self, session: Session[Step, Answer], opening: Open, trace: StreamTrace
    ) -> "InstrumentedSession[Step, Answer]":
        """Return the same session with telemetry."""
        name_request(opening.request_id)
        return InstrumentedSession(session, self._name, trace, self._metrics)


class InstrumentedSession(Generic[Step, Answer]):
    """A session that records its steps."""

    def __init__(
        self, session: Session[Step, Answer], name: str, trace: StreamTrace, metrics: StepMetrics[Answer]
    ) -> None:
        self._session = session
        self._name = name
        self._trace = trace
        self._metrics = metrics

    async def step(self, step: Step) -> Answer:
        started = time.perf_counter()
        with self._trace.step(self._name, step.span_id) as span:
            try:
                answer = await self._session.step(step)
            except StaleState as stale:
                self._metrics.stale[stale.reason].inc()
                raise
            if span.span_id:
                span.note(**_figures(answer))
        self._metrics.record_step(answer, time.perf_counter() - started)
        return answer

    async def finish(self, last: SequenceUpdate) -> None:
        await self._session.finish(last)


def _figures(answer: Verification | Draft) -> dict[str, Note]:
    """Return how an answer was computed."""
    times = answer.times
    made: dict[str, Note] = {
        "queue_ns": times.queue_ns,
        "forward_ns": times.forward_ns,
        "batch_size": times.batch_size,
    }
    if isinstance(answer, Draft):
        return {
            **made,
            "tokens": len(answer.tokens),
            "forwards": answer.forwards,
            "sub_drafter_tokens": answer.sub_drafter_tokens,
        }
    return {**made, "positions": len(answer.choices), "prefill_tokens": times.prefill_tokens}
