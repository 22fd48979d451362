"""One round: propose, verify, decide."""

from dataclasses import dataclass, field
from operator import attrgetter, sub
from typing import Any

from fly.clock import Clock
from fly.draft_length.policy import DraftLength
from fly.messages import Draft, StepTimes, Verification
from fly.response import Round
from fly.speculation import Speculation
from fly.types import Decision, Evidence, Position, Verdict
from router.generation.drafter_session import DrafterSide
from router.generation.logprobs import PendingLogprobs
from router.generation.target_session import TargetSide
from router.requests.deadline import Deadline
from router.requests.request import PreparedRequest
from router.text.output import ResponseText
from services.common.telemetry.observers import ResponseObserver
from services.common.telemetry.tracing import Span

NO_DRAFT = Draft(step_id=0, tokens=())
_TOTALS = attrgetter("drafted", "accepted", "draft_s", "verify_s", "wire_s")
"""Statistics that a round adds to."""
_TARGETS_OWN = frozenset({Verdict.CORRECTED, Verdict.BONUS, Verdict.PLAIN})


@dataclass(slots=True)
class Response:
    """One choice's response in the making.

    Attributes:
        drafter: None where none takes part.
        draft_length: Chooses it, round by round.
        started: Clock reading when the request came.
        observer: Told of its rounds.
        span: That its rounds are parts of.
        rounds_without: Rounds that wanted a draft and had none.
        untold: Rounds that no piece has told yet.
    """

    request: PreparedRequest
    speculation: Speculation
    text: ResponseText
    logprobs: PendingLogprobs
    target: TargetSide
    drafter: DrafterSide | None
    draft_length: DraftLength
    clock: Clock
    deadline: Deadline
    started: float
    observer: ResponseObserver
    span: Span
    rounds_without: int = 0
    untold: list[Round] = field(default_factory=list)

    def take_rounds(self) -> tuple[Round, ...]:
        """The rounds that were played since the last call."""
        taken, self.untold = tuple(self.untold), []
        return taken


async def play_round(response: Response) -> Decision:
    """Decides at least one token, or carries a window over.

    Raises:
        DeadlineExceeded: Nobody wants the answer any more.
        FlyServeError: The target cannot go on.
    """
    response.deadline.remaining_ms()
    before, started = _TOTALS(response.speculation.statistics), response.clock.now()
    with response.span.child("round") as span:
        draft = await propose(response, span)
        verification = await verify(response, draft, span)
        decision = decide(response, draft, verification)
        span.note(drafted=len(draft.tokens), decided=len(decision.decided))
    response.untold.append(_played(response, before, started))
    return decision


async def propose(response: Response, span: Span) -> Draft:
    """A draft after the sequence; an empty one where none is wanted or to be had."""
    max_tokens = min(response.draft_length.choose(), response.speculation.max_drafts)
    if response.drafter is None or max_tokens <= 0:
        return NO_DRAFT
    asked_at = response.clock.now()
    with span.call("draft"):
        draft = await response.drafter.draft(
            response.target.replica,
            response.speculation.sequence,
            response.speculation.decided_length,
            max_tokens,
            response.request.plan.end_at_stop,
        )
    if draft is None:
        response.rounds_without += 1
        response.observer.missed_draft()
        return NO_DRAFT
    _count_draft(response, draft, response.clock.now() - asked_at)
    return draft


async def verify(response: Response, draft: Draft, span: Span) -> Verification:
    """The target's word on the draft."""
    speculation, asked_at = response.speculation, response.clock.now()
    distributions = draft.distributions if response.request.needs_distributions else ()
    with span.call("verify"):
        verification = await response.target.verify(
            speculation.sequence, draft.tokens, speculation.decided_length, distributions
        )
    response.logprobs.record(len(speculation.sequence), verification)
    spent_s = response.clock.now() - asked_at
    statistics, forward_s = speculation.statistics, _forward_s(verification.times)
    response.draft_length.verified(verification, spent_s)
    response.observer.verified(verification, spent_s)
    statistics.verify_s += forward_s
    statistics.wire_s += max(0.0, spent_s - forward_s)
    return verification


def decide(response: Response, draft: Draft, verification: Verification) -> Decision:
    """Applies the rule to what the target said."""
    speculation, start = response.speculation, len(response.speculation.sequence)
    decision = speculation.apply(make_evidence(draft.tokens, verification))
    if speculation.finish_reason is None:
        is_open = bool(decision.provisional)
        response.draft_length.decided(start, len(draft.tokens), speculation.decided_length, is_open)
    num_kept = count_kept(len(draft.tokens), len(speculation.sequence) - start, decision)
    response.observer.decided(len(draft.tokens), num_kept, decision)
    statistics = speculation.statistics
    if not statistics.time_to_first_token_s and decision.decided:
        statistics.time_to_first_token_s = response.clock.now() - response.started
        response.observer.first_token(statistics.time_to_first_token_s)
    return decision


def count_kept(num_drafts: int, growth: int, decision: Decision) -> int:
    """How many of a round's drafts the sequence has kept, for good or provisionally.

    Args:
        num_drafts: Draft tokens of the round.
        growth: How much longer the sequence is; negative where an earlier round's window has failed.
        decision: What became of the round.
    """
    ends_with_own = bool(decision.decided) and not decision.provisional
    own = int(ends_with_own and decision.decided[-1].verdict in _TARGETS_OWN)
    return min(num_drafts, max(0, growth - own))


def make_evidence(drafts: tuple[int, ...], verification: Verification) -> Evidence:
    """Each draft beside the target's word on it, and the target's extra choice."""
    excluded = verification.excluded_drafts
    judged = zip(drafts, verification.choices, verification.entropies, strict=False)
    positions = [
        Position(token, choice, entropy, index in excluded)
        for index, (token, choice, entropy) in enumerate(judged)
    ]
    return Evidence(tuple(positions), verification.choices[-1], verification.entropies[-1])


def _count_draft(response: Response, draft: Draft, spent_s: float) -> None:
    statistics, forward_s = response.speculation.statistics, _forward_s(draft.times)
    response.draft_length.drafted(draft, spent_s)
    response.observer.drafted(draft, spent_s)
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


def _played(response: Response, before: tuple[Any, ...], started: float) -> Round:
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
