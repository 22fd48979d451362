"""Streams with telemetry: count every step, record a traced stream as a span, name the request in the log."""

import time
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram

from fly.messages import Draft, DraftStep, Open, Role, Verification, VerifyStep
from fly.sequence import SequenceUpdate, StaleReason, StaleState
from services.common.stream_server import SequenceSession
from services.common.telemetry.buckets import SECONDS
from services.common.telemetry.logs import name_request
from services.common.telemetry.tracing import Span, Tracer, record_span, traceparent_in

Step = TypeVar("Step", bound=VerifyStep | DraftStep)
Answer = TypeVar("Answer", bound=Verification | Draft)

VerifySteps = SequenceSession[VerifyStep, Verification]
DraftSteps = SequenceSession[DraftStep, Draft]


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

    def __init__(self, name: str, tracer: Tracer | None, metrics: StepMetrics[Answer]) -> None:
        """Record steps in `metrics`, and one span called `name` per stream."""
        self._name = name
        self._tracer = tracer
        self._metrics = metrics

    def trace(self, context: CallContext) -> AbstractContextManager[Span | None]:
        """Return the span of a call's stream; enter it for as long as the stream lasts."""
        return record_span(self._tracer, self._name, traceparent_in(context.invocation_metadata()))

    def instrument(
        self, session: SequenceSession[Step, Answer], opening: Open, span: Span | None
    ) -> "InstrumentedSession[Step, Answer]":
        """Return the same session with telemetry."""
        name_request(opening.request_id)
        if span is not None:
            span.set_attribute("request_id", opening.request_id)
        return InstrumentedSession(session, span, self._metrics)


class InstrumentedSession(Generic[Step, Answer]):
    """A session that records its steps."""

    def __init__(
        self, session: SequenceSession[Step, Answer], span: Span | None, metrics: StepMetrics[Answer]
    ) -> None:
        self._session = session
        self._span = span
        self._metrics = metrics

    async def step(self, step: Step) -> Answer:
        started = time.perf_counter()
        try:
            answer = await self._session.step(step)
        except StaleState as stale:
            self._metrics.stale[stale.reason].inc()
            if self._span is not None:
                self._span.add_event("stale", {"reason": stale.reason.value})
            raise
        seconds = time.perf_counter() - started
        self._metrics.record_step(answer, seconds)
        if self._span is not None:
            self._span.add_event("step", _figures(answer, seconds))
        return answer

    async def finish(self, last: SequenceUpdate) -> None:
        await self._session.finish(last)


def _figures(answer: Verification | Draft, seconds: float) -> dict[str, int | float]:
    """Return how an answer was computed."""
    times = answer.times
    figures = {
        "seconds": seconds,
        "queue_s": times.queue_ns * 1e-9,
        "forward_s": times.forward_ns * 1e-9,
        "batch_size": times.batch_size,
    }
    if isinstance(answer, Draft):
        return {
            **figures,
            "tokens": len(answer.tokens),
            "forwards": answer.forwards,
            "sub_drafter_tokens": answer.sub_drafter_tokens,
        }
    return {**figures, "positions": len(answer.choices), "prefill_tokens": times.prefill_tokens}
