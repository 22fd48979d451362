"""The use of sub-drafters at one drafter, over all its sequences: at all, and for snippets; pure."""

from flyserve.core.comparison import Comparison, Turn
from flyserve.core.ewma import Ewma

_PROBE_EVERY = 13
"""One request in this many is sent although few bring snippets, since text and load change. It is a prime, so
that it does not always fall on the same position of a draft."""

_QUIET_SEQUENCES, _LOOK_EVERY = 8, 4
"""After the first number of sequences in a row without a repeat, one in the second looks for a repeat."""

_LEAST_GAIN = 0.04
"""Gain of rounds, as the logarithm of a factor, for which a sub-drafter is used: its streams, and what it
keeps of finished sequences, cost time that no round shows."""

_LEAST_ANSWERED = 0.05
"""Share of responses with snippets below which few are requested."""

_SHARE = 0.1
"""Weight of the latest response in the average."""


class SubDrafterUse:
    """Gain of proposals, learned from rounds, and how often sequences repeat earlier responses.

    Attributes:
        comparison: Rounds with proposals and without: they include all that proposals cost, such as a CPU
            that the sub-drafter shares with the drafter.
    """

    def __init__(self, turn: Turn | None = None) -> None:
        """Start without data; `turn` is that of the drafter's comparisons."""
        self.comparison = Comparison(turn, _LEAST_GAIN)
        self._answered = Ewma(_SHARE)
        self._num_skipped = self._num_quiet = 0

    def begin_sequence(self) -> bool:
        """Begin a sequence; return True if it looks for repeats even where proposals do not pay."""
        self._num_quiet += 1
        return self._num_quiet <= _QUIET_SEQUENCES or self._num_quiet % _LOOK_EVERY == 0

    def should_fetch(self) -> bool:
        """Return True if the next response is likely to bring snippets, or if the request is a probe."""
        if self._answered.value is None or self._answered.value > _LEAST_ANSWERED:
            return True
        self._num_skipped = (self._num_skipped + 1) % _PROBE_EVERY
        return self._num_skipped == 0

    def record_repeat(self) -> None:
        """Record tokens that repeated another response and were right."""
        self._answered = Ewma(_SHARE)
        self._num_skipped = self._num_quiet = 0

    def record_snippets(self, number: int) -> None:
        """Record how many snippets a response brought."""
        self._answered.add(float(number > 0))
