"""What a service tells of its streams: every step is counted, traced and named in the log."""

import time
from typing import Any, Generic, Protocol, TypeVar

from fly.messages import Draft, DraftStep, Open, Verification, VerifyStep
from fly.sequence import SequenceUpdate, StaleState
from services.common.stream_server import SequenceSession
from services.common.telemetry.logs import name_request
from services.common.telemetry.observers import StepObserver
from services.common.telemetry.tracing import Note, StreamTrace, Tracer

Step = TypeVar("Step", bound=VerifyStep | DraftStep)
Answer = TypeVar("Answer", bound=Verification | Draft)

VerifySteps = SequenceSession[VerifyStep, Verification]
DraftSteps = SequenceSession[DraftStep, Draft]


class Called(Protocol):
    """The part of a call's context that names its trace."""

    def invocation_metadata(self) -> Any:
        """Key and value, pair by pair."""


class StreamTelemetry(Generic[Answer]):
    """Of one servicer.

    Attributes:
        observer: Told of every step.
    """

    def __init__(self, name: str, tracer: Tracer, observer: StepObserver[Answer]) -> None:
        """Traces each step as `name`."""
        self.observer = observer
        self._name = name
        self._tracer = tracer

    def trace(self, context: Called) -> StreamTrace:
        """What the stream of this call belongs to; to be entered while it lasts."""
        return self._tracer.stream(context.invocation_metadata())

    def observed(
        self, session: SequenceSession[Step, Answer], opening: Open, trace: StreamTrace
    ) -> "ObservedSession[Step, Answer]":
        """The same session, told of."""
        name_request(opening.request_id)
        return ObservedSession(session, self._name, trace, self.observer)


class ObservedSession(Generic[Step, Answer]):
    """A session whose steps are told of."""

    def __init__(
        self,
        session: SequenceSession[Step, Answer],
        name: str,
        trace: StreamTrace,
        observer: StepObserver[Answer],
    ) -> None:
        self._session = session
        self._name = name
        self._trace = trace
        self._observer = observer

    async def step(self, step: Step) -> Answer:
        started = time.perf_counter()
        with self._trace.step(self._name, step.span_id) as span:
            try:
                answer = await self._session.step(step)
            except StaleState as stale:
                self._observer.stale(stale.reason)
                raise
            if span.span_id:
                span.note(**_figures(answer))
        self._observer.answered(answer, time.perf_counter() - started)
        return answer

    async def finish(self, last: SequenceUpdate) -> None:
        await self._session.finish(last)


def _figures(answer: Verification | Draft) -> dict[str, Note]:
    """How an answer was made."""
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
