"""How much longer rounds last than the forwards alone explain."""

import math

from fly.costs import Average

_MEMORY_ROUNDS = 16.0
_FADE_ROUNDS = 50.0
_LARGEST = 1.5
_SHARED = 0.5
"""How much of the usual misfit a length has that was not played for long."""


class Misfits:
    """Ratios of measured to expected seconds of a round, by length of the draft and by load.

    Rounds are counted per sequence. What a length's own rounds had fades when it is no longer played.
    """

    def __init__(self) -> None:
        self._ratios: dict[tuple[int, int], Average] = {}
        self._seen_at: dict[tuple[int, int], float] = {}
        self._usual = Average(1.0, _MEMORY_ROUNDS)
        self._rounds = 0.0

    def observe(self, length: int, num_sequences: int, ratio: float) -> None:
        """Adds one of so many sequences' rounds."""
        if not math.isfinite(ratio):
            return
        ratio, share, key = max(1.0, min(_LARGEST, ratio)), 1 / num_sequences, _key(length, num_sequences)
        self._rounds += share
        self._seen_at[key] = self._rounds
        self._ratios.setdefault(key, Average(1.0, _MEMORY_ROUNDS)).add(ratio, share)
        self._usual.add(ratio, share)

    def ratio(self, length: int, num_sequences: int) -> float:
        """What to multiply the expected seconds with; at least 1."""
        unknown = 1 + _SHARED * (self._usual.value - 1)
        key = _key(length, num_sequences)
        if key not in self._ratios:
            return unknown
        fresh = max(0.0, 1 - (self._rounds - self._seen_at[key]) / _FADE_ROUNDS)
        weight = fresh * self._ratios[key].weight / _MEMORY_ROUNDS
        return unknown + weight * (self._ratios[key].value - unknown)


def _key(length: int, num_sequences: int) -> tuple[int, int]:
    return length, num_sequences.bit_length()
