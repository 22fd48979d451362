"""Goodput control: choose the draft length with the most expected tokens per second."""

import math
from dataclasses import replace
from operator import truediv

from fly.clock import Clock
from fly.draft_length.acceptance import Acceptance, AcceptancePool, PendingAcceptance
from fly.draft_length.draft_gain import DraftGain
from fly.draft_length.exploration import Exploration
from fly.draft_length.policy import DraftLength
from fly.draft_length.round_time import RoundTimes
from fly.messages import Draft, Verification

_TOKEN_PRICE = 0.0015
"""Share of the goodput that a draft token must gain beyond its cost: of equally good lengths, the shorter."""
_DRAFT_PRICE = 0.01
"""The same for drafting at all: in doubt, the target decodes alone."""
_MIN_GAIN = 0.005
_GAIN_ROUNDS = 0.5
"""A change requires this gain divided by the rounds since the last change: 12% after 4, 1% after 50."""
_UNSETTLED = 2
"""Rounds after the begin or end of a trial that are not typical: drafts of before, and long prefixes."""
_EXPLORED_STEPS = 32
"""Most tokens that a lone sequence decodes without a draft to explore that."""
_EXPLORED_ROUNDS = 4
"""Rounds that a lone sequence explores with drafts: the first one computes a long prefix."""
_LONG_PREFIX = 4
"""Number of tokens missed by the drafter above which a draft is not representative of the usual cost."""


class GoodputLength(DraftLength):
    """A `DraftLength` that weighs expected tokens against expected seconds; 0 is one of the lengths.

    The sooner after the last change, the larger the gain that another change requires. From time to time it
    explores a longer draft: without drafts nothing else shows when they become profitable again.
    """

    def __init__(
        self,
        pool: AcceptancePool,
        round_times: RoundTimes,
        exploration: Exploration,
        gain: DraftGain,
        clock: Clock,
    ) -> None:
        """Control one sequence, whose drafts have at least one token.

        Args:
            pool: Shared by weights, rule and longest draft.
            round_times: Shared by target.
            exploration: The same.
            gain: Shared as `pool` is.
            clock: Measures rounds.
        """
        self._acceptance = Acceptance(pool)
        self._max_length = pool.max_length
        self._round_times = round_times
        self._exploration = exploration
        self._gain = gain
        self._clock = clock
        self._pending = PendingAcceptance()
        self._length: int | None = None
        self._used = 0
        self._phase = gain.phase
        self._rounds_in_phase = 0
        self._tokens: list[float] = []
        self._rounds_since_change = 0
        self._rounds_s: list[float] = []
        self._s_per_token = 0.0
        self._chosen_at = 0.0
        self._is_exploring = False
        self._left_to_explore = 0
        self._num_rounds = 0
        self._missed_tokens: int | None = None

    @property
    def is_exploring(self) -> bool:
        # NOTE: a round without a draft teaches nothing about one, so no late draft is waited for.
        return self._is_exploring and self._used > 0

    @property
    def most_steps(self) -> float:
        # NOTE: if each response were one step, there would never be a time to explore.
        if self._round_times.num_sequences > 1:
            return math.inf
        if self._is_exploring:
            return _EXPLORED_STEPS
        return self._exploration.rounds_until_due(self._rounds_s[0])

    def choose(self) -> int:
        self._chosen_at = self._clock.now()
        tokens = self._tokens = self._acceptance.expected_tokens()
        rounds_s = self._rounds_s = self._round_times.rounds_s(self._max_length)
        if self._round_times.num_sequences > 1:
            rounds_s[0] = self._gain.plain_s(rounds_s, max(map(truediv, tokens[1:], rounds_s[1:])))
        goodputs = _goodputs(tokens, self._rounds_s)
        length = self._length = self._best_length(goodputs)
        self._s_per_token = self._rounds_s[length] / tokens[length]
        self._used, self._is_exploring = self._try_length(length, goodputs), False
        if self._phase != self._gain.phase:
            self._phase, self._rounds_in_phase = self._gain.phase, 0
        if self._used == length:
            explored = self._length_to_explore(length, goodputs)
            self._is_exploring = explored != length and self._try_explore(explored)
            self._used = explored if self._is_exploring else length
        return self._used

    def _try_length(self, length: int, goodputs: list[float]) -> int:
        """Return the length, or another one while a trial asks for drafts or for none."""
        if self._gain.choose(length > 0) is (length > 0):
            return length
        return 0 if length else _best_draft(goodputs)

    def _length_to_explore(self, length: int, goodputs: list[float]) -> int:
        """Return a longer draft, or none if it is long unknown what decoding without drafts takes.

        Only a lone sequence shows that: the drafts of others would be rows of the same forwards. And only
        such a sequence shows what the best draft takes, for which others have trials.
        """
        if self._round_times.num_sequences == 1:
            if not self._num_rounds:
                return length
            if length and not self._round_times.is_plain_known:
                return 0
            if not length:
                return _best_draft(goodputs)
        return min(self._max_length, 2 * length + 1)

    def _try_explore(self, explored: int) -> bool:
        """Return True if this round may explore that length: a lone sequence tries drafts for some rounds."""
        is_series = explored > 0 and not self._length and self._round_times.num_sequences == 1
        if not (is_series and self._left_to_explore):
            self._left_to_explore = 0
            if not self._exploration.try_begin(is_plain=not self._length):
                return False
            self._left_to_explore = _EXPLORED_ROUNDS if is_series else 1
        self._left_to_explore -= 1
        return True

    def record_draft(self, draft: Draft, spent_s: float) -> None:
        if self._is_exploring and not self._length and self._round_times.num_sequences > 1:
            # NOTE: the drafter computes a long prefix and drafts ahead: all others may have waited for it.
            self._exploration.record(self._round_times.num_sequences * spent_s, 0.0)
        if self._missed_tokens is not None and self._missed_tokens <= _LONG_PREFIX:
            self._round_times.record_draft(draft, spent_s)
        self._missed_tokens = 0

    def record_verification(self, verification: Verification, spent_s: float, num_steps: int = 1) -> None:
        is_usual, step_s = self._num_rounds > 0, spent_s / num_steps
        self._round_times.record_verification(
            _step(verification, num_steps), step_s, is_usual, is_plain=not self._used
        )
        if is_usual and not (self._used or self._is_exploring):
            self._exploration.record_usual(num_steps, step_s)

    def record_round(self, start: int, num_drafts: int, decided_length: int, is_open: bool) -> None:
        num_steps = 1 if num_drafts else max(1, decided_length - start)
        if not num_drafts and self._missed_tokens is not None:
            self._missed_tokens += num_steps
        self._pending.add(start, num_drafts)
        tokens = 0
        for length, accepted in self._pending.settle(decided_length, is_open):
            self._acceptance.observe(length, accepted, self._round_times.num_sequences)
            tokens += 1 + accepted
        self._num_rounds += 1
        spent_s = self._clock.now() - self._chosen_at
        self._record_time(min(num_drafts, self._max_length), tokens, num_steps, spent_s / num_steps)

    def _best_length(self, goodputs: list[float]) -> int:
        """Return the best length if its gain justifies a change, else the present length."""
        best = max(range(len(goodputs)), key=goodputs.__getitem__)
        if self._length is None:
            return best
        self._rounds_since_change += 1
        gain = max(_MIN_GAIN, _GAIN_ROUNDS / self._rounds_since_change)
        if goodputs[best] <= (1 + gain) * goodputs[self._length]:
            return self._length
        self._rounds_since_change = 0
        return best

    def _record_time(self, num_drafts: int, tokens: int, num_steps: int, round_s: float) -> None:
        """Record the time of one of `num_steps` equal rounds.

        A long prefix that the drafter computes is part of exploring.
        """
        self._record_gain(num_drafts, num_steps, round_s)
        if self._is_exploring:
            is_alone, usual_s = self._round_times.num_sequences == 1, tokens * self._s_per_token
            # NOTE: of several sequences, one that is quick may make the others slow.
            spent_s = round_s if is_alone else max(round_s, self._rounds_s[num_drafts])
            self._exploration.record(num_steps * spent_s, num_steps * usual_s)
        elif self._used:
            self._exploration.record_usual(num_steps, round_s)

    def _record_gain(self, num_drafts: int, num_steps: int, round_s: float) -> None:
        """Record a round by the length that it was to have: its draft may be late, or cut."""
        length, tokens, rounds_s = self._used, self._tokens, self._rounds_s
        self._rounds_in_phase += 1
        if self._is_exploring:
            return
        worth = tokens[num_drafts] / tokens[length] if length else 1.0
        if self._rounds_in_phase > _UNSETTLED:
            self._round_times.record_round(length, worth * rounds_s[length], round_s)
        if self._round_times.num_sequences == 1:
            return
        units = worth * rounds_s[length] / rounds_s[-1] if length else 1.0
        self._gain.record(
            self._phase,
            length > 0,
            self._round_times.num_sequences,
            num_steps * round_s,
            num_steps * units,
            is_settled=self._rounds_in_phase > _UNSETTLED,
        )


def _step(verification: Verification, num_steps: int) -> Verification:
    """Return the mean of several steps that decoded one token each."""
    if num_steps == 1:
        return verification
    times = verification.times
    times = replace(times, queue_ns=times.queue_ns // num_steps, forward_ns=times.forward_ns // num_steps)
    return replace(verification, times=times)


def _best_draft(goodputs: list[float]) -> int:
    """Return the length with the most goodput of those above 0."""
    return 1 + max(range(len(goodputs) - 1), key=lambda index: goodputs[index + 1])


def _goodputs(tokens: list[float], rounds_s: list[float]) -> list[float]:
    """Return tokens per second by length, less what drafting must gain beyond its cost."""
    return [
        count / seconds * (1 - _TOKEN_PRICE * length - _DRAFT_PRICE * (length > 0))
        for length, (count, seconds) in enumerate(zip(tokens, rounds_s, strict=True))
    ]
