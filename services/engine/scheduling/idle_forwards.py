"""Durations of forwards of idle jobs, by the number of their sequences. Pure."""

from fly.ewma import Ewma

_SHARE = 0.1


class IdleForwards:
    """The mean cost of another sequence in a forward of idle jobs, each with one row as a rule.

    Attributes:
        added_cost: Time that each further sequence adds, as a share of a forward of one; None without data.
    """

    def __init__(self) -> None:
        self._alone_s = Ewma(_SHARE)
        self._added = Ewma(_SHARE)

    @property
    def added_cost(self) -> float | None:
        return self._added.value

    def record(self, num_sequences: int, seconds: float) -> None:
        """Record a forward."""
        if num_sequences == 1:
            self._alone_s.add(seconds)
        elif self._alone_s.value:
            ratio = seconds / self._alone_s.value
            self._added.add(max(0.0, ratio - 1) / (num_sequences - 1))
