"""When to try another length than the one that seems best."""

_SHARE = 0.015
_EVERY_ROUNDS = 32
_RARELY = 8


class TrialBudget:
    """What trials lose stays below a share of the time.

    Shared by the sequences of one target, so that many of them do not try more often than one does.
    """

    def __init__(self) -> None:
        self._credit_s = 0.0
        self._rounds = 0

    def take(self, is_plain: bool) -> bool:
        """Whether this round may be a trial; if so, the next one has to wait.

        Args:
            is_plain: There are no drafts but trials: nothing else tells when drafts would pay again.
        """
        if self._rounds < _EVERY_ROUNDS * (1 if is_plain else _RARELY) or self._credit_s < 0:
            return False
        self._rounds = 0
        return True

    def earn(self, round_s: float) -> None:
        """An ordinary round was played."""
        self._rounds += 1
        self._credit_s = max(self._credit_s, min(0.0, self._credit_s + _SHARE * round_s))

    def pay(self, cost_s: float, worth_s: float) -> None:
        """A trial was played.

        Args:
            cost_s: What it took.
            worth_s: What its tokens would have taken otherwise. If that is more, another trial may follow at
                once, and one that fails is paid for by it.
        """
        self._credit_s = min(cost_s, self._credit_s + worth_s - cost_s)
        if worth_s > cost_s:
            self._rounds = _EVERY_ROUNDS * _RARELY
