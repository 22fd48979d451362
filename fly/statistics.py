"""What every response reports of how it was made."""

from collections import Counter
from dataclasses import dataclass, field

from fly.types import Decision, RejectionReason, Verdict


@dataclass(slots=True)
class Statistics:
    """Counts and times of one response; times in seconds.

    Attributes:
        rounds: Verifications, with and without a draft.
        drafted: Draft tokens verified.
        emitted: Tokens emitted.
        accepted: Emitted drafts, rescued ones included.
        rescued: Emitted drafts that differ from the target's choice.
        rejections: First rejected mismatch of each round, by reason.
        drafter_forwards: Forwards of the drafter's model.
        sub_drafter_tokens: Draft tokens that the sub-drafter supplied.
        draft_s: Spent drafting, less the wire.
        verify_s: Spent verifying, less the wire.
        wire_s: On the wire, and in queues.
        wire_bytes: Sent to and received from the services.
        replays: Times that the sequence was replayed from its start.
        draft_rounds: Rounds with a draft.
        draft_round_tokens: Tokens emitted in them, those of an earlier round's window included.
        carried: Rounds that left a window open for the next draft.
        proposals_requested: Of the sub-drafter; `late`, `rejected` and `weak` ones among them were of no use.
        drafted_ahead: Draft tokens that were ready before they were asked for.
        dropped_ahead: Tokens that were drafted ahead in vain.
    """

    rounds: int = 0
    drafted: int = 0
    emitted: int = 0
    accepted: int = 0
    rescued: int = 0
    rejections: Counter[RejectionReason] = field(default_factory=Counter)
    drafter_forwards: int = 0
    sub_drafter_tokens: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    wire_s: float = 0.0
    wire_bytes: int = 0
    replays: int = 0
    time_to_first_token_s: float = 0.0
    total_s: float = 0.0
    seed: int = 0
    draft_rounds: int = 0
    draft_round_tokens: int = 0
    carried: int = 0
    proposals_requested: int = 0
    proposals_late: int = 0
    proposals_invalid: int = 0
    proposals_low_confidence: int = 0
    drafted_ahead: int = 0
    dropped_ahead: int = 0

    @property
    def tau(self) -> float:
        """Tokens emitted in rounds with a draft, per such round; 0 without one."""
        return self.draft_round_tokens / self.draft_rounds if self.draft_rounds else 0.0

    def count_round(self, num_drafts: int, decision: Decision) -> None:
        """Adds one verification and what was decided of it."""
        verdicts = [decided.verdict for decided in decision.decided]
        self.rounds += 1
        self.drafted += num_drafts
        self.emitted += len(verdicts)
        rescued = verdicts.count(Verdict.RESCUED)
        self.accepted += verdicts.count(Verdict.EXACT) + rescued
        self.rescued += rescued
        self.carried += bool(decision.provisional)
        if decision.rejection is not None:
            self.rejections[decision.rejection] += 1
        if num_drafts:
            self.draft_rounds += 1
            self.draft_round_tokens += len(decision.decided)
