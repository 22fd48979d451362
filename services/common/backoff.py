"""How long to wait before another try."""

_FIRST_S = 0.1
_LONGEST_S = 5.0


class Backoff:
    """Doubles from a tenth of a second to five."""

    def __init__(self) -> None:
        self._next_s = _FIRST_S

    def next_s(self) -> float:
        """Seconds to wait now; the next wait is longer."""
        wait_s, self._next_s = self._next_s, min(2 * self._next_s, _LONGEST_S)
        return wait_s
