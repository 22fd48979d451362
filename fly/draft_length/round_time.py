"""The duration of a round at the present load: shared forwards of target and drafter, and waits."""

import math

from fly.clock import Clock
from fly.costs import CostCurve
from fly.ewma import RecentLine, RecentMean
from fly.messages import Draft, StepTimes, Verification

_MEMORY_STEPS = 32.0
_MEMORY_DRAFTS = 64.0
_PRIOR_VARIANCE = 64.0
"""Squared forwards for which the assumption counts that every forward of a draft costs the same."""
_SMALLEST_S = 1e-9
_ITERATIONS = 2
_MEMORY_ROUNDS = 24.0
_PRIOR_ROUNDS = 2.0
_MEMORY_LENGTHS, _ALIKE = 2.0, 0.1
_LARGEST_FACTOR = 1.5
_PLAIN_AGE_S = 30.0


class RoundTimes:
    """A model of round times at one target replica with its drafters, as one router observes them.

    The model assumes that every sequence at the target uses the same draft length. The rows of one sequence
    slow down all others, so the length that is best under this assumption is best for all of them together.

    The target verifies all waiting sequences in one forward, so under load its sequences fall into groups:
    while one group is verified, the others draft or wait for the end of that forward. There are as many
    groups as forwards fit into a sequence's own steps, and a round lasts one forward of each group. A lone
    sequence waits for no other.

    Attributes:
        num_sequences: Sequences at the target at present.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._target = CostCurve(clock)
        self._drafter = CostCurve(clock, extrapolates=False)
        self.num_sequences = 1
        self._verify_wait_s = RecentMean(0.0, _MEMORY_STEPS)
        self._plain_wait_s = RecentMean(0.0, _MEMORY_STEPS)
        self._plain_at_s = -math.inf
        self._draft_wait_s = RecentMean(0.0, _MEMORY_STEPS)
        self._forwards_per_token = RecentMean(1.0, _MEMORY_STEPS)
        self._draft_forwards = RecentLine(_MEMORY_DRAFTS, _PRIOR_VARIANCE)
        self._drafter_share = RecentMean(1.0, _MEMORY_STEPS)
        self._ratios = _RoundRatios()
        self._length = RecentMean(0.0, _MEMORY_LENGTHS)
        self._rounds_s: list[float] = []
        self._num_outdated = 0

    @property
    def is_plain_known(self) -> bool:
        """True if a step that decoded tokens without drafts was measured lately."""
        return self._clock.now() - self._plain_at_s < _PLAIN_AGE_S

    def record_draft(self, draft: Draft, spent_s: float) -> None:
        """Record a draft for which the drafter had no long prefix to compute first."""
        if not draft.tokens or not draft.forwards:
            return
        batch = max(1, draft.times.batch_size)
        forward_s = draft.times.forward_ns * 1e-9 / draft.forwards
        self._drafter.observe(batch, forward_s, 1 / (batch * draft.forwards))
        if self.num_sequences == 1 and (usual_s := self._drafter.estimate(batch)):
            self._draft_forwards.add(draft.forwards, draft.forwards * forward_s / usual_s)
        self._forwards_per_token.add(draft.forwards / len(draft.tokens))
        self._drafter_share.add(max(1.0, draft.load.sequences / self.num_sequences))
        self._draft_wait_s.add(_wait_s(draft.times, spent_s))

    def record_verification(
        self, verification: Verification, spent_s: float, is_usual: bool = True, is_plain: bool = False
    ) -> None:
        """Record a verification; the first one of a sequence is not usual, since it includes the prefill.

        If the round was to have no draft it is `is_plain`: the target may have decoded several tokens in one
        step, of which each has a part of the wait.
        """
        times = verification.times
        self._num_outdated += 1
        self.num_sequences = max(1, times.batch_size, verification.load.sequences)
        if not is_usual:
            return
        if is_plain:
            self._plain_wait_s.add(_wait_s(times, spent_s))
            self._plain_at_s = self._clock.now()
        else:
            self._verify_wait_s.add(_wait_s(times, spent_s))
        # Every sequence of a forward reports the same forward.
        weight = 1 / max(1, times.batch_size)
        self._target.observe(times.batch_tokens, times.forward_ns * 1e-9, weight)

    def record_round(self, length: int, expected_s: float, round_s: float) -> None:
        """Record a round that was to have `length` drafts and to take `expected_s`."""
        self._length.add(float(length), 1 / self.num_sequences)
        is_alike = abs(self._length.value - length) <= _ALIKE * (length + 1)
        if is_alike and 0 < round_s < math.inf:
            key = self._key(length)
            self._ratios.observe(key, round_s / expected_s * self._ratios.factor(key), 1 / self.num_sequences)

    def _key(self, length: int) -> int:
        # NOTE: a lone sequence waits for no drafts of others: one factor fits all its lengths but none.
        return length if self.num_sequences > 1 else min(length, 1)

    def rounds_s(self, max_length: int) -> list[float]:
        """Return the seconds of a round with drafts of 0, 1, ... `max_length` tokens; each is above 0."""
        if self._num_outdated >= 2 * (self.num_sequences - 1) or len(self._rounds_s) <= max_length:
            self._rounds_s, self._num_outdated = [self.round_s(each) for each in range(max_length + 1)], 0
        return self._rounds_s[: max_length + 1]

    def round_s(self, length: int) -> float:
        """Return the estimated seconds of a round with drafts of `length` tokens, above 0."""
        return max(_SMALLEST_S, self._round_s(length) * self._ratios.factor(self._key(length)))

    def _round_s(self, length: int) -> float:
        groups, waits_s = min(2.0, self.num_sequences), self._verify_wait_s.value
        draft_s = late_s = 0.0
        if length:
            waits_s += self._draft_wait_s.value
        elif self._plain_wait_s.weight:
            waits_s = self._plain_wait_s.value
        for _ in range(_ITERATIONS if self.num_sequences > 1 else 1):
            forward_s = self._target.estimate(self.num_sequences * (length + 1) / groups)
            if length:
                late_s = self._drafter_s(groups)
                draft_s = self._forwards(length) * late_s
            own_s, late_s = forward_s + waits_s + draft_s, late_s + waits_s / 2
            groups = min(float(self.num_sequences), _groups(own_s, forward_s, late_s))
        if groups > 1:
            own_s += late_s / 2
        return max(own_s, groups * forward_s)

    def _forwards(self, length: int) -> float:
        """Return the forwards of a draft in units of its mean one: a lone sequence's first one is slower."""
        forwards = length * self._forwards_per_token.value
        return self._draft_forwards.estimate(forwards) if self.num_sequences == 1 else forwards

    def _drafter_s(self, groups: float) -> float:
        """Return the seconds of a drafter's forward while all groups but the verified one draft."""
        batch = max(1.0, self.num_sequences * (1 - 1 / groups))
        return self._drafter.estimate(batch * self._drafter_share.value)


class _RoundRatios:
    """Ratios of measured to estimated seconds of a round, by draft length: 1 where none is recent."""

    def __init__(self) -> None:
        self._ratios: dict[int, tuple[float, float]] = {}

    def observe(self, key: int, ratio: float, share: float) -> None:
        """Add the ratio of one round of one of `1 / share` sequences; those of all lengths age."""
        keep = 1 - share / _MEMORY_ROUNDS
        self._ratios = {each: (total * keep, weight * keep) for each, (total, weight) in self._ratios.items()}
        total, weight = self._ratios.get(key, (0.0, 0.0))
        # NOTE: as far down as up, or the noise of single rounds would look like rounds that are too long.
        ratio = max(0.5, min(_LARGEST_FACTOR, ratio))
        self._ratios[key] = total + share * ratio, weight + share

    def factor(self, key: int) -> float:
        """Return the factor for the estimated seconds of a round."""
        total, weight = self._ratios.get(key, (0.0, 0.0))
        return max(1.0, (total + _PRIOR_ROUNDS) / (weight + _PRIOR_ROUNDS))


def _groups(own_s: float, forward_s: float, slack_s: float) -> float:
    """Return how many forwards a sequence's own steps last; one more for sequences late by the slack."""
    if forward_s <= 0:
        return 1.0
    whole = math.ceil(own_s / forward_s)
    late_s = own_s + slack_s - whole * forward_s
    return whole + (max(0.0, min(1.0, late_s / slack_s)) if slack_s > 0 else 0.0)


def _wait_s(times: StepTimes, spent_s: float) -> float:
    """Return the seconds of a step outside the service's queue and forwards."""
    wait_s = spent_s - (times.queue_ns + times.forward_ns) * 1e-9
    return max(0.0, wait_s) if math.isfinite(wait_s) else 0.0
