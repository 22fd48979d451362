"""The usual duration of a step at one replica."""

from fly.ewma import Ewma

_NEWEST_SHARE = 0.1


class StepPace:
    """The usual time from a step's request to its answer, as this router observes it."""

    def __init__(self) -> None:
        self._usual_s = Ewma(_NEWEST_SHARE)
        self._unusual_s: float | None = None

    @property
    def usual_s(self) -> float | None:
        """Seconds of a usual step; of the latest unusual one while there was no usual one; else None."""
        return self._unusual_s if self._usual_s.value is None else self._usual_s.value

    def record(self, seconds: float, is_usual: bool) -> None:
        """Record a step; one that computed a prompt is not usual."""
        if is_usual:
            self._usual_s.add(seconds)
        else:
            self._unusual_s = seconds
