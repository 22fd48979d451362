"""The turns at which responses with the policy `goodput` explore other draft lengths."""

import math

from fly.comparison import LOST_SHARE, Allowance

_EVERY_ROUNDS = 32
_RARELY = 8


class Exploration:
    """The next turn to explore: rarely while drafts pay, and when what the last turn lost is earned again.

    Shared by the sequences of one target, so that many sequences together explore no more often than one.
    """

    def __init__(self) -> None:
        self._allowance = Allowance()
        self._rounds = 0

    def try_begin(self, is_plain: bool) -> bool:
        """Return True if this round may explore; the following rounds then wait for their turn.

        Args:
            is_plain: The present length is 0. Exploring is then more frequent, since only an explored round
                shows that drafts have become profitable again.
        """
        if self._rounds < _EVERY_ROUNDS * (1 if is_plain else _RARELY) or self._allowance.seconds < 0:
            return False
        self._rounds = 0
        return True

    def record_usual(self, number: int, round_s: float) -> None:
        """Record ordinary rounds of the same duration: they earn time for exploring."""
        self._rounds += number
        self._allowance.earn(number * round_s)

    def rounds_until_due(self, round_s: float) -> int:
        """Return the number of rounds of `round_s` seconds without a draft until one may explore."""
        earning = math.ceil(-self._allowance.seconds / (LOST_SHARE * round_s))
        return max(1, _EVERY_ROUNDS - self._rounds, earning)

    def record(self, spent_s: float, usual_s: float) -> None:
        """Record explored rounds of `spent_s` seconds, whose tokens usually take `usual_s`.

        If exploring was faster, the next round may explore again at once.
        """
        self._allowance.charge(spent_s - usual_s)
        if usual_s > spent_s:
            self._rounds = _EVERY_ROUNDS * _RARELY
