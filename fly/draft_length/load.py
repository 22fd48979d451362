"""What a round costs at the present load: shared forwards of target and drafter, and waits."""

import math

from fly.clock import Clock
from fly.costs import Average, CostCurve
from fly.draft_length.misfit import Misfits
from fly.messages import Draft, StepTimes, Verification

_MEMORY_STEPS = 32.0
_MEMORY_FORWARDS = 2.0
_SMALLEST_S = 1e-9
_ITERATIONS = 2
_ALIKE = 0.1


class RoundCosts:
    """One target replica and the drafters of its sequences, as the sequences of one router see them.

    A round is charged as if every sequence at the target did the same: the rows of one slow down all, so what
    is best for one is then best for all of them together.

    The target takes in one forward all that wait, so under load its sequences fall into groups: while one is
    verified the others draft, or wait for the end of that forward. There are as many groups as it takes
    forwards to outlast a sequence's own steps, and a round lasts one forward of each. A lone sequence waits
    for nobody.

    Attributes:
        num_sequences: At the target, at present.
    """

    def __init__(self, clock: Clock) -> None:
        self._target = CostCurve(clock)
        self._drafter = CostCurve(clock, rises=False)
        self.num_sequences = 1
        self._rows_each = Average(1.0, _MEMORY_FORWARDS)
        self._verify_wait_s = Average(0.0, _MEMORY_STEPS)
        self._draft_wait_s = Average(0.0, _MEMORY_STEPS)
        self._forwards_per_token = Average(1.0, _MEMORY_STEPS)
        self._drafter_share = Average(1.0, _MEMORY_STEPS)
        self._misfits = Misfits()

    def drafted(self, draft: Draft, spent_s: float) -> None:
        """Adds the making of a draft, for which the drafter had no long prefix to compute first."""
        if not draft.tokens or not draft.forwards:
            return
        batch = max(1, draft.times.batch_size)
        forward_s = draft.times.forward_ns * 1e-9 / draft.forwards
        self._drafter.observe(batch, forward_s, 1 / (batch * draft.forwards))
        self._forwards_per_token.add(draft.forwards / len(draft.tokens))
        self._drafter_share.add(max(1.0, draft.load.sequences / self.num_sequences))
        self._draft_wait_s.add(_wait_s(draft.times, spent_s))

    def verified(self, verification: Verification, spent_s: float, is_usual: bool = True) -> None:
        """Adds a verification; the first of a sequence is not usual, its prompt was computed with it."""
        times = verification.times
        self.num_sequences = max(1, times.batch_size, verification.load.sequences)
        if not is_usual:
            return
        self._verify_wait_s.add(_wait_s(times, spent_s))
        # Every sequence in the forward is told the same of it.
        weight = 1 / max(1, times.batch_size)
        self._rows_each.add(len(verification.choices), weight)
        self._target.observe(times.batch_tokens, times.forward_ns * 1e-9, weight)

    def played(self, length: int, expected_s: float, round_s: float) -> None:
        """Adds a whole round, expected to last `expected_s`; counts where the others did about the same."""
        if not (
            0 < round_s < math.inf and abs(self._rows_each.value - (length + 1)) <= _ALIKE * (length + 1)
        ):
            return
        ratio = self._misfits.ratio(length, self.num_sequences)
        self._misfits.observe(length, self.num_sequences, round_s / expected_s * ratio)

    def rounds_s(self, max_length: int) -> list[float]:
        """Seconds of a round with drafts of 0, 1, ... `max_length` tokens; each above 0."""
        return [
            max(_SMALLEST_S, self._round_s(length) * self._misfits.ratio(length, self.num_sequences))
            for length in range(max_length + 1)
        ]

    def _round_s(self, length: int) -> float:
        groups, waits_s = min(2.0, self.num_sequences), self._verify_wait_s.value
        draft_s = late_s = 0.0
        if length:
            waits_s += self._draft_wait_s.value
        for _ in range(_ITERATIONS):
            forward_s = self._target.estimate(self.num_sequences * (length + 1) / groups)
            if length:
                late_s = self._drafter_s(groups)
                draft_s = length * self._forwards_per_token.value * late_s
            own_s, late_s = forward_s + waits_s + draft_s, late_s + waits_s / 2
            groups = min(float(self.num_sequences), _groups(own_s, forward_s, late_s))
        if groups > 1:
            own_s += late_s / 2
        return max(own_s, groups * forward_s)

    def _drafter_s(self, groups: float) -> float:
        """Seconds of a drafter's forward, while all groups but the one that is verified draft."""
        batch = max(1.0, self.num_sequences * (1 - 1 / groups))
        return self._drafter.estimate(batch * self._drafter_share.value)


def _groups(own_s: float, forward_s: float, slack_s: float) -> float:
    """Forwards that outlast a sequence's own steps; one more for those who are late by the slack."""
    if forward_s <= 0:
        return 1.0
    whole = math.ceil(own_s / forward_s)
    late_s = own_s + slack_s - whole * forward_s
    return whole + (max(0.0, min(1.0, late_s / slack_s)) if slack_s > 0 else 0.0)


def _wait_s(times: StepTimes, spent_s: float) -> float:
    """Seconds of a step outside the service's queue and forwards."""
    wait_s = spent_s - (times.queue_ns + times.forward_ns) * 1e-9
    return max(0.0, wait_s) if math.isfinite(wait_s) else 0.0
