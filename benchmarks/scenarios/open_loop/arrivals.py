"""Times at which requests arrive: a Poisson process, with or without a burst (pure)."""

import random
from dataclasses import dataclass

_BURST_START, _BURST_PART = 0.5, 0.05
"""Start and length of a burst, as parts of the run."""


@dataclass(frozen=True, slots=True)
class Load:
    """A rate of requests.

    Attributes:
        share: Rate as a share of the requests per second that plain decoding completes at most.
        burst: Factor of the rate during a twentieth of the run, in its middle; 1 for none.
    """

    share: float
    burst: float = 1.0

    @property
    def name(self) -> str:
        """Name in tables."""
        name = f"{self.share:g} of the capacity"
        return name if self.burst == 1 else f"{name}, burst of {self.burst:g}x"

    def rate_at(self, part: float) -> float:
        """Return the factor of the rate at this part of the run, 0 to 1."""
        return self.burst if _BURST_START <= part < _BURST_START + _BURST_PART else 1.0


def arrivals(load: Load, rate: float, seconds: float, seed: int) -> list[float]:
    """Return the times in seconds, in order, of requests that arrive at `rate` a second; the first at 0.

    The process is thinned from one with the highest rate (Lewis and Shedler, 1979).
    """
    dice, found, time = random.Random(seed), [0.0], 0.0
    while True:
        time += dice.expovariate(rate * load.burst)
        if time >= seconds:
            return found
        if dice.random() * load.burst < load.rate_at(time / seconds):
            found.append(time)
