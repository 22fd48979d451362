"""One round: propose, verify, decide."""

from dataclasses import dataclass, field
from operator import attrgetter, sub
from typing import Any

from fly.clock import Clock
from fly.draft_length.policy import DraftLength
from fly.messages import Draft, StepTimes, Verification
from fly.response import Round
from fly.speculation import Speculation
from fly.types import Decision, Evidence, Logprobs, Position, PositionLogprobs, RankedToken, Token, Verdict
from router.generation.drafter_session import DrafterSession
from router.generation.observation import trace_round
from router.generation.target_session import TargetSession
from router.metrics import ModeMetrics
from router.requests.request import Deadline, PreparedRequest
from router.text.output import ResponseText
from router.text.tokenizer import Tokenizer
from services.common.telemetry.tracing import Span


class PendingLogprobs:
    """Log-probabilities by position; a later verification of a position overwrites an earlier one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._by_position: dict[int, PositionLogprobs] = {}

    def record(self, first: int, verification: Verification) -> None:
        """Record the log-probabilities of the positions from `first` on, if they were requested."""
        self._by_position.update(enumerate(verification.logprobs, start=first))

    def take(self, position: int, decided: Token) -> Logprobs | None:
        """Remove and return those of the token decided at a position; None if they were not requested."""
        found = self._by_position.pop(position, None)
        if found is None:
            return None
        is_choice = decided.id == decided.choice or found.draft is None
        own = found.choice if is_choice else found.draft
        assert own is not None
        texts = self._tokenizer.pieces([token for token, _ in found.top])
        top = (RankedToken(token, text, value) for (token, value), text in zip(found.top, texts, strict=True))
        return Logprobs(own, found.choice, tuple(top))


NO_DRAFT = Draft(step_id=0, tokens=())
_TOTALS = attrgetter("drafted", "accepted", "draft_s", "verify_s", "wire_s")
"""Statistics that a round adds to."""
_OWN_CHOICES = frozenset({Verdict.CORRECTED, Verdict.BONUS, Verdict.PLAIN})


@dataclass(slots=True)
class Response:
    """A response that is being generated: one choice of a request.

    Attributes:
        drafter: None if the response is decoded without drafts.
        draft_length: Chooses the draft length of each round.
        started: Clock reading at the arrival of the request.
        metrics: Metrics of its rounds.
        span: Span of the request, with an event per round; None if the request is not traced.
        rounds_without_draft: Rounds that requested a draft and got none.
        pending_rounds: Rounds that have not been sent to the client yet.
    """

    request: PreparedRequest
    speculation: Speculation
    text: ResponseText
    logprobs: PendingLogprobs
    target: TargetSession
    drafter: DrafterSession | None
    draft_length: DraftLength
    clock: Clock
    deadline: Deadline
    started: float
    metrics: ModeMetrics
    span: Span | None
    rounds_without_draft: int = 0
    pending_rounds: list[Round] = field(default_factory=list)

    def take_rounds(self) -> tuple[Round, ...]:
        """Return the rounds since the last call."""
        taken, self.pending_rounds = tuple(self.pending_rounds), []
        return taken


async def run_round(response: Response) -> Decision:
    """Run one round: decide at least one token, or carry a window over.

    Raises:
        DeadlineExceeded: The deadline of the request has passed.
        FlyServeError: The target cannot continue.
    """
    response.deadline.remaining_ms()
    before, started = _TOTALS(response.speculation.statistics), response.clock.now()
    draft = await propose(response)
    verification = await verify(response, draft)
    decision = decide(response, draft, verification)
    record = _round_record(response, before, started)
    response.pending_rounds.append(record)
    if response.span is not None:
        trace_round(response.span, response.request, record)
    return decision


async def propose(response: Response) -> Draft:
    """Return a draft after the sequence; an empty one if none is wanted or available."""
    max_tokens = min(response.draft_length.choose(), response.speculation.max_drafts)
    if response.drafter is None or max_tokens <= 0:
        return NO_DRAFT
    requested_at = response.clock.now()
    draft = await response.drafter.draft(
        response.target.replica,
        response.speculation.sequence,
        response.speculation.decided_length,
        max_tokens,
        response.request.plan.end_at_stop,
    )
    if draft is None:
        response.rounds_without_draft += 1
        response.metrics.rounds_missed.inc()
        return NO_DRAFT
    _count_draft(response, draft, response.clock.now() - requested_at)
    return draft


async def verify(response: Response, draft: Draft) -> Verification:
    """Return the target's scores of the draft."""
    speculation, requested_at = response.speculation, response.clock.now()
    distributions = draft.distributions if response.request.needs_distributions else ()
    verification = await response.target.verify(
        speculation.sequence, draft.tokens, speculation.decided_length, distributions
    )
    response.logprobs.record(len(speculation.sequence), verification)
    spent_s = response.clock.now() - requested_at
    statistics, forward_s = speculation.statistics, _forward_s(verification.times)
    response.draft_length.record_verification(verification, spent_s)
    response.metrics.verify_seconds.observe(spent_s)
    statistics.verify_s += forward_s
    statistics.wire_s += max(0.0, spent_s - forward_s)
    return verification


def decide(response: Response, draft: Draft, verification: Verification) -> Decision:
    """Apply the rule to the target's scores."""
    speculation, start = response.speculation, len(response.speculation.sequence)
    decision = speculation.apply(make_evidence(draft.tokens, verification))
    if speculation.finish_reason is None:
        is_open = bool(decision.provisional)
        response.draft_length.record_round(start, len(draft.tokens), speculation.decided_length, is_open)
    num_accepted = count_accepted(len(draft.tokens), len(speculation.sequence) - start, decision)
    response.metrics.record_round(len(draft.tokens), num_accepted, decision)
    statistics = speculation.statistics
    if not statistics.time_to_first_token_s and decision.decided:
        statistics.time_to_first_token_s = response.clock.now() - response.started
        response.metrics.first_token.observe(statistics.time_to_first_token_s)
    return decision


def count_accepted(num_drafts: int, growth: int, decision: Decision) -> int:
    """Return the number of a round's drafts that the sequence keeps, decided or provisional.

    `growth` is the change of the sequence's length; negative if an earlier round's window has failed.
    """
    ends_with_choice = bool(decision.decided) and not decision.provisional
    own = int(ends_with_choice and decision.decided[-1].verdict in _OWN_CHOICES)
    return min(num_drafts, max(0, growth - own))


def make_evidence(drafts: tuple[int, ...], verification: Verification) -> Evidence:
    """Return each draft with the target's scores at its position, and the target's extra choice."""
    excluded = verification.excluded_drafts
    judged = zip(drafts, verification.choices, verification.entropies, strict=False)
    positions = [
        Position(token, choice, entropy, index in excluded)
        for index, (token, choice, entropy) in enumerate(judged)
    ]
    return Evidence(tuple(positions), verification.choices[-1], verification.entropies[-1])


def _count_draft(response: Response, draft: Draft, spent_s: float) -> None:
    statistics, forward_s = response.speculation.statistics, _forward_s(draft.times)
    response.draft_length.record_draft(draft, spent_s)
    response.metrics.draft_seconds.observe(spent_s)
    statistics.drafter_forwards += draft.forwards
    statistics.sub_drafter_tokens += draft.sub_drafter_tokens
    statistics.proposals_requested += draft.proposals.requested
    statistics.proposals_late += draft.proposals.late
    statistics.proposals_invalid += draft.proposals.invalid
    statistics.proposals_low_confidence += draft.proposals.low_confidence
    statistics.drafted_ahead += draft.drafted_ahead
    statistics.dropped_ahead += draft.dropped_ahead
    statistics.draft_s += forward_s
    statistics.wire_s += max(0.0, spent_s - forward_s)


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


def _forward_s(times: StepTimes) -> float:
    return times.forward_ns * 1e-9
