"""The gain of drafts under load, by decoding without them: measured by trials, not modelled."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fly.clock import Clock
from fly.draft_length.plain_trials import RecentRounds, Trials
from fly.ewma import RecentMean

_MEASURED_S = {True: 0.35, False: 0.8}
"""Seconds of a trial without drafts that count, and of one with drafts, whose acceptance differs more."""
_PREFIX_S = 0.4
"""First seconds of a trial with drafts, in which drafters compute the tokens of before."""
_OBVIOUS = math.log(3.0)
"""A trial ends early if its tokens take three times as long as usual, or a third: noise is smaller."""
_READY_ROUNDS = 24.0
"""Rounds of every sequence before a trial, with which it is compared."""
_MEMORY_TRIALS = 4.0
_SHARE, _FIRST_SHARE = 0.0075, 0.03
"""Share of the time that trials at one load may lose, and that the first ones may."""
_FEW_TRIALS = 3
_LEAST_LOSS = 0.3
"""Share of a trial that counts as lost in any case."""
_UNCERTAIN = 0.25
"""Logarithm of a gain above which its trials become rarer, and of a shift that is too large to rely on."""
_LONGEST_REST_S = 120.0
_PAUSE_S = 1.0
"""Rounds further apart than this have a pause between them, which is no rest from trials."""
_MEMORY_LOAD, _MEMORY_CHOICES, _MEMORY_GAIN = 4.0, 2.0, 2.0
_ALIKE = 0.1
"""Share of sequences that may do otherwise in rounds that count as those of all."""
_OWN_FACTOR = 1.4
"""Sequences whose gain is closer to the mean do as the others: a mixture is slower than either."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Expectations of a round of one sequence, by the length of its draft, from 0 on.

    Attributes:
        tokens: Expected tokens.
        rounds_s: Estimated seconds; only the ratios of those with drafts matter here.
    """

    tokens: Sequence[float]
    rounds_s: Sequence[float]

    def best(self) -> float:
        """Return the tokens per second of the best draft."""
        return max(self.tokens[index] / self.rounds_s[index] for index in range(1, len(self.tokens)))


@dataclass(slots=True)
class _Results:
    """Results of the trials at one load.

    Attributes:
        log_gain: Logarithm of the tokens per second with drafts by those without; its weight is the number of
            trials, as far as they are remembered.
        tokens: Expected tokens of a round by the length of its draft, for which it holds.
        lost_s: Seconds that the latest trial lost.
        rested_s: Seconds with rounds since.
    """

    log_gain: RecentMean = field(default_factory=lambda: RecentMean(0.0, _MEMORY_TRIALS))
    tokens: Sequence[float] = ()
    lost_s: float = 0.0
    rested_s: float = 0.0

    def begin(self) -> None:
        """Begin a trial; if it ends without a result, the next one follows after the longest rest."""
        self.lost_s, self.rested_s = _LONGEST_REST_S, 0.0

    def shift(self, estimate: Estimate) -> float:
        """Return the logarithm of what the best draft is worth by `estimate`, by what it was worth then."""
        return math.log(estimate.best() / replace(estimate, tokens=self.tokens).best())

    def add(self, log_gain: float, lost_s: float, estimate: Estimate) -> None:
        """Add the result of a trial; those before are shifted, or forgotten if they would be shifted far."""
        shift = self.shift(estimate) if self.tokens else 0.0
        if abs(shift) > _UNCERTAIN:
            self.log_gain = RecentMean(0.0, _MEMORY_TRIALS)
        self.log_gain.value += shift
        self.log_gain.add(log_gain)
        self.tokens = estimate.tokens
        self.lost_s, self.rested_s = lost_s, 0.0

    def is_due(self, log_gain: float) -> bool:
        """Return True once the latest trial lost a small share of the time; later if the gain is clear.

        `log_gain` is the present one, that of the trials and the present shift.
        """
        shift = log_gain - self.log_gain.value
        if self.log_gain.weight < _FEW_TRIALS or abs(shift) > _UNCERTAIN:
            rest_s = self.lost_s / _FIRST_SHARE
        else:
            rest_s = max(1.0, abs(log_gain) / _UNCERTAIN) ** 2 * self.lost_s / _SHARE
        return self.rested_s >= min(_LONGEST_REST_S, rest_s)


class PlainComparison:
    """Tokens per second with drafts by those without, by load, for sequences of one kind.

    Both are measured while all sequences do the same: one before a trial, the other in it. The load is the
    number of sequences per target, to the nearest power of 2. A lone sequence needs no trials: its rounds do
    not depend on those of others.
    """

    def __init__(self, trials: Trials, clock: Clock) -> None:
        """Compare at targets of the router that has these `trials`."""
        self._trials = trials
        self._updated_at_s = -math.inf
        self._clock = clock
        self._recorded_at_s = clock.now()
        self._sequences = RecentMean(1.0, _MEMORY_LOAD)
        self._load = 0
        self._results: dict[int, _Results] = {}
        self._log_gain = RecentMean(0.0, _MEMORY_GAIN)
        self._plain_choices = RecentMean(0.0, _MEMORY_CHOICES)
        self._usual = {is_plain: RecentRounds() for is_plain in (False, True)}
        self._trial: RecentRounds | None = None

    @property
    def changed_at_s(self) -> float:
        """Time at which the present trial of the router began, or the last one ended."""
        return self._trials.changed_at_s

    def gain(self, estimate: Estimate) -> float | None:
        """Return the tokens per second with drafts by those without; None if it has never been measured.

        The measured gain is scaled by what the best draft has come to be worth since, for this sequence if
        it differs much from the others.
        """
        measured = [load for load, results in self._results.items() if results.log_gain.weight]
        if not measured:
            return None
        results = self._results[min(measured, key=lambda load: abs(load - self._load))]
        own = results.log_gain.value + results.shift(estimate)
        self._log_gain.add(own, 1 / self._sequences.value)
        is_alike = abs(own - self._log_gain.value) < math.log(_OWN_FACTOR)
        return math.exp(self._log_gain.value if is_alike else own)

    def choose(self, wants_plain: bool) -> bool:
        """Return True if the next round of a sequence is to have no draft; it may begin a trial."""
        self._update()
        is_plain = self._trials.is_plain
        if is_plain is None:
            if not (self._is_due(wants_plain) and self._trials.try_begin(not wants_plain)):
                return wants_plain
            is_plain = not wants_plain
            self._results.setdefault(self._load, _Results()).begin()
            self._update()
        return is_plain

    def record(
        self,
        is_plain: bool,
        num_sequences: int,
        num_drafts: int,
        num_steps: int,
        seconds: float,
        estimate: Estimate,
    ) -> None:
        """Record a round that is not among the first ones after the begin or end of a trial.

        Args:
            is_plain: It was to have no draft.
            num_sequences: Sequences at the target.
            num_drafts: Draft tokens that were verified.
            num_steps: Tokens that were decoded one after the other in a round without a draft, else 1.
            seconds: Duration of the round.
            estimate: What the sequence expects of rounds.
        """
        self._follow(num_sequences)
        share = 1 / num_sequences
        if self._trial is None:
            self._plain_choices.add(float(is_plain), share)
            if abs(self._plain_choices.value - is_plain) <= _ALIKE:
                self._usual[is_plain].add(num_drafts, num_steps, seconds, share)
        elif is_plain is self._trials.is_plain and self._settled_s(is_plain) >= 0:
            self._trial.add(num_drafts, num_steps, seconds, share)
            self._judge(is_plain, self._trial, self._usual[not is_plain], estimate)

    def _follow(self, num_sequences: int) -> None:
        """Follow the load, and forget the rounds of another one; let the time that rounds take pass."""
        now_s = self._clock.now()
        self._sequences.add(float(num_sequences), 1 / num_sequences)
        load = round(math.log2(self._sequences.value))
        if load != self._load and self._trial is None:
            self._load = load
            self._usual = {is_plain: RecentRounds() for is_plain in (False, True)}
        if load in self._results:
            self._results[load].rested_s += min(_PAUSE_S, now_s - self._recorded_at_s)
        self._recorded_at_s = now_s

    def _is_due(self, wants_plain: bool) -> bool:
        if not self._load or self._usual[wants_plain].count < _READY_ROUNDS:
            return False
        results = self._results.get(self._load)
        return results is None or results.is_due(self._log_gain.value)

    def _update(self) -> None:
        """Follow the begin and the end of a trial."""
        if self._updated_at_s != self.changed_at_s:
            self._trial = None if self._trials.is_plain is None else RecentRounds()
            self._updated_at_s = self.changed_at_s

    def _settled_s(self, is_plain: bool) -> float:
        """Return the seconds of the trial that count: not those in which late drafts still arrive."""
        unsettled_s = self._usual[False].round_s if is_plain else _PREFIX_S
        return self._clock.now() - self.changed_at_s - unsettled_s

    def _judge(self, is_plain: bool, trial: RecentRounds, usual: RecentRounds, estimate: Estimate) -> None:
        """End the trial if it has lasted long enough, or its result is obvious."""
        if trial.count < 1 or not usual.count:
            return
        log_loss = math.log(trial.token_s(estimate.tokens) / usual.token_s(estimate.tokens))
        if self._settled_s(is_plain) < _MEASURED_S[is_plain] and abs(log_loss) < _OBVIOUS:
            return
        # NOTE: after the trial too, prefixes are long, or drafts late.
        unsettled_s = _PREFIX_S if is_plain else trial.round_s
        spent_s = self._clock.now() - self.changed_at_s + unsettled_s
        self._trials.end()
        results = self._results.setdefault(self._load, _Results())
        results.add(
            log_gain=log_loss if is_plain else -log_loss,
            lost_s=max(_LEAST_LOSS, 1 - math.exp(-log_loss)) * spent_s,
            estimate=estimate,
        )
        self._log_gain = RecentMean(results.log_gain.value, _MEMORY_GAIN)
        self._update()
