"""Drafts for likely outcomes of a verification, each on a branch of the sequence."""

from collections.abc import Sequence
from itertools import zip_longest

from fly.sequence import SequenceUpdate
from services.drafter.drafting import Drafting, Proposer
from services.drafter.outcomes import Outcome
from services.engine.base import NO_SLOT
from services.engine.engine import Engine
from services.engine.sequence import EngineSequence


class _Branch:
    """A branch that is used again in every round, so that little KV is copied.

    Attributes:
        sequence: The branch.
        drafting: Its draft of this round; None if it has none.
        num_equal: Its first tokens that are known to be those of the main sequence.
    """

    def __init__(self, sequence: EngineSequence) -> None:
        self.sequence = sequence
        self.drafting: Drafting | None = None
        self.num_equal = 0

    def begin(self, main: EngineSequence, length: int, token: int) -> None:
        """Follow the first `length` tokens of the main sequence and then another token."""
        self.sequence.truncate(min(self.num_equal, length))
        self.sequence.extend((*main.tokens.ids[len(self.sequence) : length], token))
        self.sequence.take_kv(main, length)
        self.sequence.num_logprobs = main.num_logprobs
        self.num_equal = length

    def fits(self, update: SequenceUpdate) -> bool:
        """Return True if the update of the main sequence makes it what this branch was before its draft."""
        if self.drafting is None:
            return False
        start = self.drafting.start
        return (
            0 <= update.keep <= self.num_equal
            and update.keep + len(update.tokens) == start
            and tuple(self.sequence.tokens.ids[update.keep : start]) == update.tokens
        )


class Branches:
    """The branches of one sequence.

    Attributes:
        num_tokens: Tokens that were drafted on all of them in this round.
    """

    def __init__(self, engine: Engine, main: EngineSequence) -> None:
        self._engine = engine
        self._main = main
        self._branches: list[_Branch] = []

    @property
    def num_tokens(self) -> int:
        return sum(branch.drafting.num_tokens for branch in self._branches if branch.drafting is not None)

    def begin(self, draft: Drafting, outcomes: Sequence[Outcome], max_tokens: int) -> list[Drafting]:
        """Return drafts after the outcomes of a finished draft of the main sequence; their jobs may start."""
        self._branches = [branch for branch in self._branches if branch.sequence.slot != NO_SLOT]
        while len(self._branches) < len(outcomes):
            self._branches.append(_Branch(self._engine.fork(self._main)))
        drafts = list[Drafting]()
        for branch, outcome in zip_longest(self._branches, outcomes):
            branch.drafting = None
            if outcome is not None and outcome.token not in draft.ending_ids:
                branch.begin(self._main, draft.start + outcome.kept, outcome.token)
                branch.drafting = Drafting(branch.sequence, max_tokens, draft.ending_ids, Proposer())
                drafts.append(branch.drafting)
        return drafts

    def find(self, update: SequenceUpdate) -> Drafting | None:
        """Return the draft on the branch that the update confirms, if there is one."""
        found = next((branch.drafting for branch in self._branches if branch.fits(update)), None)
        if found is None or self._main.tokens.prefix_hash(update.keep) != update.prefix_hash:
            return None
        return found

    def keep(self, length: int) -> None:
        """Record that the tokens of the main sequence have changed from position `length` on."""
        for branch in self._branches:
            branch.num_equal = min(branch.num_equal, length)
            branch.drafting = None

    def close(self) -> None:
        """Close all branches; none may have a job."""
        for branch in self._branches:
            self._engine.close(branch.sequence)
        self._branches = []
