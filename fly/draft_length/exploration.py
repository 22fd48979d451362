"""A limit on the time that responses with the policy `goodput` lose by exploring other draft lengths."""

import math

_SHARE = 0.0075
_EVERY_ROUNDS = 32
_RARELY = 8


class ExplorationBudget:
    """A limit on the share of time that exploring may lose.

    Shared by the sequences of one target, so that many sequences together explore no more often than one.
    """

    def __init__(self) -> None:
        self._credit_s = 0.0
        self._rounds = 0

    def try_explore(self, is_plain: bool) -> bool:
        """Return True if this round may explore; the following rounds then wait for their turn.

        Args:
            is_plain: The present length is 0. Exploring is then more frequent, since only an explored round
                shows that drafts have become profitable again.
        """
        if self._rounds < _EVERY_ROUNDS * (1 if is_plain else _RARELY) or self._credit_s < 0:
            return False
        self._rounds = 0
        return True

    def record_rounds(self, number: int, round_s: float) -> None:
        """Record ordinary rounds of the same duration: they earn time for exploring."""
        self._rounds += number
        self._credit_s = max(self._credit_s, min(0.0, self._credit_s + _SHARE * number * round_s))

    def rounds_until_due(self, round_s: float) -> int:
        """Return the number of rounds of `round_s` seconds without a draft until one may explore."""
        earning = math.ceil(-self._credit_s / (_SHARE * round_s))
        return max(1, _EVERY_ROUNDS - self._rounds, earning)

    def charge(self, seconds: float) -> None:
        """Charge time that exploring has cost other sequences."""
        self._credit_s -= seconds

    def record_exploration(self, spent_s: float, usual_s: float) -> None:
        """Record an explored round and charge the time that it lost.

        Args:
            spent_s: Seconds that the round took.
            usual_s: Seconds that its tokens take at the usual length. If this is more, the next round may
                explore again at once, and the gain pays for one that fails.
        """
        self._credit_s = min(spent_s, self._credit_s + usual_s - spent_s)
        if usual_s > spent_s:
            self._rounds = _EVERY_ROUNDS * _RARELY
