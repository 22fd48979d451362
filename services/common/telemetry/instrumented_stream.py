"""Streams with telemetry: count every step, record a traced stream as a span, name the request in the log."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram

from flyserve.core.messages import (
    Close,
    Draft,
    DraftStep,
    Extend,
    Open,
    Role,
    Stale,
    Verification,
    VerifyStep,
)
from flyserve.core.sequence import SequenceUpdate, StaleReason, StaleState
from services.common.stream_server import SequenceSession, serve_stream
from services.common.telemetry.buckets import SECONDS
from services.common.telemetry.logs import name_request
from services.common.telemetry.tracing import Span, Tracer, record_span

Step = TypeVar("Step", bound=VerifyStep | Extend | DraftStep)
Answer = TypeVar("Answer", bound=Verification | Draft)

VerifySteps = SequenceSession[VerifyStep | Extend, Verification]
DraftSteps = SequenceSession[DraftStep, Draft]


class StepMetrics(Generic[Answer]):
    """The metrics that every service records about its steps."""

    def __init__(self, registry: CollectorRegistry, role: Role) -> None:
        self._registry, self._role = registry, role.value
        self.stale = self._counters(
            "flyserve_stale_steps_total",
            "Steps whose sequence had to be replayed, by reason.",
            "reason",
            [reason.value for reason in StaleReason],
        )
        self._seconds = self._histogram(
            "flyserve_step_seconds", "Time from a step's arrival to its answer.", SECONDS
        )

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        metric = Histogram(name, text, ("role",), registry=self._registry, buckets=buckets)
        return metric.labels(self._role)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ("role",), registry=self._registry).labels(self._role)

    def _counters(self, name: str, text: str, label: str, values: Sequence[str]) -> dict[str, Counter]:
        """Return a counter for each value of a label."""
        metric = Counter(name, text, ("role", label), registry=self._registry)
        return {value: metric.labels(self._role, value) for value in values}

    def record_step(self, answer: Answer, seconds: float) -> None:
        """Count a step that was answered within `seconds`."""
        self._seconds.observe(seconds)


class StreamTelemetry(Generic[Step, Answer]):
    """Telemetry of one servicer's streams."""

    def __init__(self, name: str, tracer: Tracer | None, metrics: StepMetrics[Answer]) -> None:
        """Record steps in `metrics`, and one span called `name` per sequence."""
        self._name = name
        self._tracer = tracer
        self._metrics = metrics

    async def serve(
        self,
        requests: AsyncIterator[Any],
        send: Callable[[Any], Awaitable[None]],
        decode: Callable[[Any], Open | Step | Close],
        open_session: Callable[[Open], AbstractAsyncContextManager[SequenceSession[Step, Answer]]],
        encode: Callable[[Answer | Stale], Any],
    ) -> None:
        """Answer the steps of one sequence, as `serve_stream` does, in a span of its own.

        NOTE: a coroutine that writes, not a generator: its `finally` runs as soon as the sequence ends.
        """

        async def answer(message: Answer | Stale) -> None:
            await send(encode(message))

        @asynccontextmanager
        async def instrumented(opening: Open) -> AsyncIterator[InstrumentedSession[Step, Answer]]:
            with record_span(self._tracer, self._name, opening.traceparent) as span:
                async with open_session(opening) as session:
                    name_request(opening.request_id)
                    if span is not None:
                        span.set_attribute("request_id", opening.request_id)
                    yield InstrumentedSession(session, span, self._metrics)

        await serve_stream(requests, decode, instrumented, answer)


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
            self._metrics.stale[stale.reason.value].inc()
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
