"""The cost model of proposals: decide when a local proposal, or a request for snippets, is profitable."""

from fly.comparison import Comparison, Turn
from fly.ewma import Ewma

_PROBE_EVERY = 13
"""One unprofitable action in this many is tried all the same, since text and load change. It is a prime, so
that it does not always fall on the same position of a draft."""

_QUIET_SEQUENCES, _LOOK_EVERY = 8, 4
"""After so many sequences in a row that repeated no other response, one in so many looks for a repeat."""

_LEAST_GAIN = 0.04
"""Gain of rounds, as the logarithm of a factor, for which a sub-drafter is used: its streams, and what it
keeps of finished sequences, cost time that no round shows."""

_LEAST_ANSWERED = 0.05
"""Share of responses with snippets below which few are requested: prompt look-up has none."""

_SHARE = 0.1
"""Weight of the latest observation in every average."""


class _Probes:
    """A counter by which one in `_PROBE_EVERY` calls is a probe."""

    def __init__(self) -> None:
        self._skipped = 0

    def is_due(self) -> bool:
        self._skipped = (self._skipped + 1) % _PROBE_EVERY
        return self._skipped == 0


class ProposalBenefit:
    """Average gains and costs of local proposals, at one drafter over all its sequences; pure.

    A local proposal is profitable if the tokens that it supplies save more forward time than it costs.
    Without data, it counts as profitable.

    Attributes:
        level: Choice to use the sub-drafter at all, by whole rounds: they include what these averages miss,
            such as a CPU that it shares with the drafter.
    """

    def __init__(self, turn: Turn | None = None) -> None:
        """Create it without data; `turn` is that of the drafter's levels."""
        self.level = Comparison(turn, _LEAST_GAIN)
        self._forward_s = Ewma(_SHARE)
        self._local_s = Ewma(_SHARE)
        self._local_matches = Ewma(_SHARE)
        self._answered = Ewma(_SHARE)
        self._fetch_probes = _Probes()
        self._local_probes = _Probes()
        self._num_quiet = 0

    def begin_sequence(self) -> bool:
        """Begin a sequence; return True if it is to look for repeats even where the level does not pay."""
        self._num_quiet += 1
        return self._num_quiet <= _QUIET_SEQUENCES or self._num_quiet % _LOOK_EVERY == 0

    def should_propose(self) -> bool:
        """Return True if the next local proposal is profitable or a probe."""
        return self._is_profitable() or self._local_probes.is_due()

    def should_fetch(self) -> bool:
        """Return True if the next response is likely to bring snippets, or if the request is a probe."""
        answered = self._answered.value
        return answered is None or answered > _LEAST_ANSWERED or self._fetch_probes.is_due()

    def record_forwards(self, count: int, seconds: float) -> None:
        """Record the total duration of some forwards of the drafter."""
        if count and seconds > 0:
            self._forward_s.add(seconds / count)

    def record_local_proposal(self, seconds: float) -> None:
        """Record the time spent on a local proposal."""
        self._local_s.add(seconds)

    def record_local_matches(self, num_tokens: int) -> None:
        """Record how many tokens of a local proposal matched the draft."""
        self._local_matches.add(num_tokens)

    def record_repeat(self, num_tokens: int) -> None:
        """Record a local proposal that repeated another response and was right."""
        self._answered = Ewma(_SHARE)
        self._fetch_probes = _Probes()
        self._num_quiet = 0
        self.record_local_matches(num_tokens)

    def record_snippets(self, number: int) -> None:
        """Record how many snippets a response brought."""
        self._answered.add(float(number > 0))

    def _is_profitable(self) -> bool:
        """Return True if local proposals have saved more time than they have cost, or without data."""
        matches, forward_s, local_s = self._local_matches.value, self._forward_s.value, self._local_s.value
        if matches is None or forward_s is None or local_s is None:
            return True
        return matches * forward_s > local_s
