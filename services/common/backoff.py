"""Exponential back-off between retries."""

_FIRST_S = 0.1
_LONGEST_S = 5.0


class Backoff:
    """Delays that double from 0.1 s to 5 s."""

    def __init__(self) -> None:
        self._next_s = _FIRST_S

    def next_s(self) -> float:
        """Return the delay in seconds before this retry; the next delay is longer."""
        wait_s, self._next_s = self._next_s, min(2 * self._next_s, _LONGEST_S)
        return wait_s
