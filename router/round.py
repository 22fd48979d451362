"""One round: propose, verify, decide."""

from dataclasses import dataclass, field
from typing import NamedTuple

from fly.clock import Clock
from fly.draft_length.policy import DraftLength
from fly.messages import Draft, StepTimes, Verification
from fly.speculation import Speculation
from fly.statistics import Statistics
from fly.types import Decision, Evidence, Position
from router.deadline import Deadline
from router.drafter_side import DrafterSide
from router.logprobs import LogprobLedger
from router.request import PreparedRequest
from router.response import Round
from router.target_side import TargetSide
from router.text import ResponseText

NO_DRAFT = Draft(step_id=0, tokens=())


@dataclass(slots=True)
class Response:
    """One choice's response in the making.

    Attributes:
        drafter: None where none takes part.
        draft_length: Chooses it, round by round.
        started: Clock reading when the request came.
        rounds_without: Rounds that wanted a draft and had none.
        untold: Rounds that no piece has told yet.
    """

    request: PreparedRequest
    speculation: Speculation
    text: ResponseText
    logprobs: LogprobLedger
    target: TargetSide
    drafter: DrafterSide | None
    draft_length: DraftLength
    clock: Clock
    deadline: Deadline
    started: float
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
    before, started = _Totals.of(response.speculation.statistics), response.clock.now()
    draft = await propose(response)
    verification = await verify(response, draft)
    decision = decide(response, draft, verification)
    response.untold.append(_told(response, before, started))
    return decision


async def propose(response: Response) -> Draft:
    """A draft after the sequence; an empty one where none is wanted or to be had."""
    max_tokens = min(response.draft_length.choose(), response.speculation.max_drafts)
    if response.drafter is None or max_tokens <= 0:
        return NO_DRAFT
    asked_at = response.clock.now()
    draft = await response.drafter.draft(
        response.target.replica,
        response.speculation.sequence,
        response.speculation.decided_length,
        max_tokens,
        response.request.plan.end_at_stop,
    )
    if draft is None:
        response.rounds_without += 1
        return NO_DRAFT
    _count_draft(response, draft, response.clock.now() - asked_at)
    return draft


async def verify(response: Response, draft: Draft) -> Verification:
    """The target's word on the draft."""
    speculation, asked_at = response.speculation, response.clock.now()
    distributions = draft.distributions if response.request.needs_distributions else ()
    verification = await response.target.verify(
        speculation.sequence, draft.tokens, speculation.decided_length, distributions
    )
    response.logprobs.note(len(speculation.sequence), verification)
    spent_s = response.clock.now() - asked_at
    statistics, forward_s = speculation.statistics, _forward_s(verification.times)
    response.draft_length.verified(verification, spent_s)
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
    statistics = speculation.statistics
    if not statistics.time_to_first_token_s and decision.decided:
        statistics.time_to_first_token_s = response.clock.now() - response.started
    return decision


def make_evidence(drafts: tuple[int, ...], verification: Verification) -> Evidence:
    """Each draft beside the target's word on it, and the target's extra choice."""
    excluded = verification.excluded_drafts
    judged = zip(drafts, verification.choices, verification.entropies, strict=False)
    positions = tuple(
        Position(token, choice, entropy, index in excluded)
        for index, (token, choice, entropy) in enumerate(judged)
    )
    return Evidence(positions, verification.choices[-1], verification.entropies[-1])


def _count_draft(response: Response, draft: Draft, spent_s: float) -> None:
    statistics, forward_s = response.speculation.statistics, _forward_s(draft.times)
    response.draft_length.drafted(draft, spent_s)
    statistics.drafter_forwards += draft.forwards
    statistics.sub_drafter_tokens += draft.supplied
    statistics.guesses_asked += draft.guesses.asked
    statistics.guesses_late += draft.guesses.late
    statistics.guesses_refused += draft.guesses.refused
    statistics.guesses_weak += draft.guesses.weak
    statistics.drafted_ahead += draft.drafted_ahead
    statistics.dropped_ahead += draft.dropped_ahead
    statistics.draft_s += forward_s
    statistics.wire_s += max(0.0, spent_s - forward_s)


class _Totals(NamedTuple):
    """What a round adds to."""

    rounds: int
    drafted: int
    accepted: int
    draft_s: float
    verify_s: float
    wire_s: float

    @classmethod
    def of(cls, statistics: Statistics) -> "_Totals":
        return cls(
            statistics.rounds,
            statistics.drafted,
            statistics.accepted,
            statistics.draft_s,
            statistics.verify_s,
            statistics.wire_s,
        )


def _told(response: Response, before: _Totals, started: float) -> Round:
    """The round that has just been played: what it has added to the totals."""
    after = _Totals.of(response.speculation.statistics)
    return Round(
        index=before.rounds,
        drafted=after.drafted - before.drafted,
        accepted=after.accepted - before.accepted,
        start_s=started - response.started,
        draft_s=after.draft_s - before.draft_s,
        verify_s=after.verify_s - before.verify_s,
        wire_s=after.wire_s - before.wire_s,
        end_s=response.clock.now() - response.started,
    )


def _forward_s(times: StepTimes) -> float:
    return times.forward_ns * 1e-9
