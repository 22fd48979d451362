"""Moments without drafts: all sequences of a target decode plainly, which shows what that takes. Pure."""

from fly.clock import Clock

_EVERY_S = 30.0
_LASTS_S = 0.25
_OBVIOUS = 3.0
"""Estimated speed-up above which drafts pay without doubt: such a moment would lose more than it finds."""


class PlainReference:
    """The moments of one target: at most one in 30 s for each doubling of its sequences.

    Only then the target has its CPUs for itself, and decodes many tokens per message. While there are drafts,
    the model of rounds knows neither.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends_s = 0.0
        self._known_s: dict[int, float] = {}

    def is_now(self, num_sequences: int, speed_up: float) -> bool:
        """Return True in such a moment; begin one if it is due, and `speed_up` by drafts is not obvious."""
        now_s, key = self._clock.now(), num_sequences.bit_length()
        is_due = now_s - self._known_s.get(key, -_EVERY_S) >= _EVERY_S
        if now_s >= self._ends_s and is_due and speed_up < _OBVIOUS:
            self._ends_s = now_s + _LASTS_S
        is_now = now_s < self._ends_s
        if is_now:
            self._known_s[key] = now_s
        return is_now

    def record_plain(self, num_sequences: int) -> None:
        """Record that a sequence decodes without drafts anyway."""
        self._known_s[num_sequences.bit_length()] = self._clock.now()
