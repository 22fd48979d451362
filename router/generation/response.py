"""A response that is being generated: what all kinds of it share, its rounds and its chunks."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, sub
from typing import Any

from fly.clock import Clock
from fly.messages import StepTimes
from fly.response import Chunk, Round, Statistics
from fly.speculation import Speculation
from fly.types import Decision, FinishReason, Logprobs, Token
from router.generation.observation import trace_response, trace_round
from router.metrics import ModeMetrics
from router.replicas.connections import Connections
from router.requests.request import Deadline, PreparedRequest
from router.text.output import ResponseText
from router.text.tokenizer import Tokenizer
from services.common.telemetry.tracing import Span

_TOTALS = attrgetter("drafted", "accepted", "draft_s", "verify_s", "wire_s")
"""Statistics that a round adds to."""


@dataclass(slots=True, kw_only=True)
class Response(ABC):
    """One choice of a request.

    Attributes:
        started: Clock reading at the arrival of the request.
        metrics: Metrics of its rounds.
        span: Span of the request, with an event per round; None if the request is not traced.
        pending_rounds: Rounds that have not been sent to the client yet.
    """

    request: PreparedRequest
    speculation: Speculation
    text: ResponseText
    clock: Clock
    deadline: Deadline
    started: float
    metrics: ModeMetrics
    span: Span | None
    pending_rounds: list[Round] = field(default_factory=list)

    @property
    @abstractmethod
    def connections(self) -> Sequence[Connections[Any]]:
        """Its connections, by tier."""

    @abstractmethod
    async def decide_round(self) -> Decision:
        """Decide at least one token, or carry a window over; raise FlyServeError if that is impossible."""

    def take_logprobs(self, position: int, decided: Token) -> Logprobs | None:
        """Return the log-probabilities of the token decided at a position; None if none were requested."""
        return None

    def warnings(self) -> Iterator[str]:
        """Yield warnings about this choice, at its end."""
        return iter(())

    def take_rounds(self) -> tuple[Round, ...]:
        """Return the rounds since the last call."""
        taken, self.pending_rounds = tuple(self.pending_rounds), []
        return taken

    def record_first_token(self, decision: Decision) -> None:
        """Record the time of the first token, if this round decided it."""
        statistics = self.speculation.statistics
        if not statistics.time_to_first_token_s and decision.decided:
            statistics.time_to_first_token_s = self.clock.now() - self.started
            self.metrics.first_token.observe(statistics.time_to_first_token_s)


async def run_round(response: Response) -> Decision:
    """Run one round.

    Raises:
        DeadlineExceeded: The deadline of the request has passed.
        FlyServeError: The response cannot continue.
    """
    response.deadline.remaining_ms()
    before, started = _TOTALS(response.speculation.statistics), response.clock.now()
    decision = await response.decide_round()
    record = _round_record(response, before, started)
    response.pending_rounds.append(record)
    if response.span is not None:
        trace_round(response.span, response.request, record)
    return decision


def _round_record(response: Response, before: tuple[Any, ...], started: float) -> Round:
    """Return the round that has just ended: the difference that it made to the totals."""
    after, statistics = _TOTALS(response.speculation.statistics), response.speculation.statistics
    drafted, accepted, draft_s, verify_s, wire_s = map(sub, after, before)
    return Round(
        index=statistics.rounds - 1,
        drafted=drafted,
        accepted=accepted,
        start_s=started - response.started,
        draft_s=draft_s,
        verify_s=verify_s,
        wire_s=wire_s,
        end_s=response.clock.now() - response.started,
    )


def forward_seconds(times: StepTimes) -> float:
    """Return the seconds of the forwards of a step."""
    return times.forward_ns * 1e-9


def make_chunk(response: Response, index: int, decision: Decision, tokenizer: Tokenizer) -> Chunk | None:
    """Return the chunk that a round adds to a choice; None if it has neither tokens nor text."""
    tokens = tuple(_tokens(response, decision, tokenizer))
    text, finish_reason = response.text.take(), response.speculation.finish_reason
    if finish_reason is None and not tokens and not text:
        return None
    rounds = response.take_rounds()
    if finish_reason is None:
        return Chunk(choice_index=index, text=text, tokens=tokens, rounds=rounds)
    return Chunk(
        choice_index=index,
        text=text + response.text.flush(),
        tokens=tokens,
        rounds=rounds,
        finish_reason=finish_reason,
        statistics=_finish(response, finish_reason),
        warnings=(*response.request.warnings, *response.warnings()),
    )


def _tokens(response: Response, decision: Decision, tokenizer: Tokenizer) -> Iterator[Token]:
    """Yield the tokens that a round decided, each with its texts and log-probabilities."""
    first = response.speculation.decided_length - len(decision.decided)
    texts = response.text.take_token_texts()
    for position, (decided, text) in enumerate(zip(decision.decided, texts, strict=True), start=first):
        choice_text = "" if decided.id == decided.choice else tokenizer.pieces((decided.choice,))[0]
        yield Token(*decided[:4], text, choice_text, response.take_logprobs(position, decided))


def _finish(response: Response, finish_reason: FinishReason) -> Statistics:
    """Complete the statistics of a choice that has ended."""
    statistics = response.speculation.statistics
    for connections in response.connections:
        statistics.wire_bytes += connections.num_bytes
        statistics.replays += connections.replays
    statistics.seed = response.request.seed
    statistics.total_s = response.clock.now() - response.started
    response.metrics.record_response(finish_reason, statistics)
    if response.span is not None:
        trace_response(response.span, response.request, finish_reason, statistics)
    return statistics
