"""The length with the most expected tokens per second, at what is kept and at what it costs."""

from fly.clock import Clock
from fly.draft_length.acceptance import Acceptance, KeptDrafts, SurvivalPool
from fly.draft_length.load import RoundCosts
from fly.draft_length.trials import TrialBudget
from fly.messages import Draft, Verification

_TOKEN_PRICE = 0.003
"""Share of the goodput that a draft token must earn beyond its cost: of lengths as good, the shorter."""
_DRAFT_PRICE = 0.015
"""The same for drafting at all: in doubt, the target decodes alone."""
_MIN_GAIN = 0.005
_GAIN_ROUNDS = 0.5
"""A change must promise this gain over the rounds since the last one: 12% after 4, 1% after 50."""
_LONG_PREFIX = 4
"""Tokens that the drafter has missed from which on a draft says nothing of the usual cost."""


class GoodputLength:
    """A `DraftLength` that weighs expected tokens against expected seconds; 0 is one of the lengths.

    It changes for a gain that is the larger the shorter ago it changed. Now and then it tries a longer draft:
    without drafts, nothing else tells when they would pay again.
    """

    def __init__(self, pool: SurvivalPool, costs: RoundCosts, trials: TrialBudget, clock: Clock) -> None:
        """For one sequence; pool, costs and trials are those of all sequences like it."""
        self._acceptance = Acceptance(pool)
        self._max_length = pool.max_length
        self._costs = costs
        self._trials = trials
        self._clock = clock
        self._kept = KeptDrafts()
        self._length: int | None = None
        self._rounds_since_change = 0
        self._rounds_s: list[float] = []
        self._s_per_token = 0.0
        self._asked_at = 0.0
        self._is_trial = False
        self._is_new = True
        self._missed: int | None = None

    def choose(self) -> int:
        self._asked_at = self._clock.now()
        tokens, self._rounds_s = self._acceptance.expected_tokens(), self._costs.rounds_s(self._max_length)
        length = self._length = self._settle(_goodputs(tokens, self._rounds_s))
        self._s_per_token = self._rounds_s[length] / tokens[length]
        self._is_trial = length < self._max_length and self._trials.take(is_plain=not length)
        return min(self._max_length, 2 * length + 1) if self._is_trial else length

    def drafted(self, draft: Draft, spent_s: float) -> None:
        if self._missed is not None and self._missed <= _LONG_PREFIX:
            self._costs.drafted(draft, spent_s)
        self._missed = 0

    def verified(self, verification: Verification, spent_s: float) -> None:
        self._costs.verified(verification, spent_s, is_usual=not self._is_new)
        self._is_new = False

    def decided(self, start: int, num_drafts: int, decided_length: int, is_open: bool) -> None:
        if not num_drafts and self._missed is not None:
            self._missed += 1
        self._kept.add(start, num_drafts)
        tokens = 0
        for length, kept in self._kept.settle(decided_length, is_open):
            self._acceptance.observe(length, kept, self._costs.num_sequences)
            tokens += 1 + kept
        self._account(min(num_drafts, self._max_length), tokens, self._clock.now() - self._asked_at)

    def _settle(self, goodputs: list[float]) -> int:
        """The best length, if it is worth a change."""
        best = max(range(len(goodputs)), key=goodputs.__getitem__)
        if self._length is None:
            return best
        self._rounds_since_change += 1
        gain = max(_MIN_GAIN, _GAIN_ROUNDS / self._rounds_since_change)
        if goodputs[best] <= (1 + gain) * goodputs[self._length]:
            return self._length
        self._rounds_since_change = 0
        return best

    def _account(self, num_drafts: int, tokens: int, round_s: float) -> None:
        """Charges a trial for what it took: the drafter may have had a long prefix to catch up with."""
        if self._is_trial:
            self._trials.pay(max(round_s, self._rounds_s[num_drafts]), tokens * self._s_per_token)
            return
        self._trials.earn(round_s)
        if num_drafts == self._length:
            self._costs.played(num_drafts, self._rounds_s[num_drafts], round_s)


def _goodputs(tokens: list[float], rounds_s: list[float]) -> list[float]:
    """Tokens per second by length, less what drafting has to earn beyond its cost."""
    return [
        count / seconds * (1 - _TOKEN_PRICE * length - _DRAFT_PRICE * (length > 0))
        for length, (count, seconds) in enumerate(zip(tokens, rounds_s, strict=True))
    ]
