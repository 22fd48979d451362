"""Search for stop strings in text that arrives in pieces. Pure."""

from collections.abc import Sequence


class StopStrings:
    """Text to stream, searched for stop strings; it ends before the first one found.

    Attributes:
        is_found: True once a stop string was found.
        is_idle: True while stop strings do not count that end in the text that is added.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.is_found = self.is_idle = False

    @property
    def num_withheld(self) -> int:
        """Characters that are not taken yet."""
        return len(self._held)

    def push(self, text: str) -> bool:
        """Add text; return True if a stop string was found, after which all text is dropped."""
        if self.is_found or not self._stops or self.is_idle:
            self._held += "" if self.is_found else text
            return self.is_found
        length = len(self._held) + 1
        self._held += text
        starts = [self._held.find(stop, max(0, length - len(stop))) for stop in self._stops]
        if (start := min((at for at in starts if at >= 0), default=None)) is not None:
            self._held, self.is_found = self._held[:start], True
        return self.is_found

    def take(self) -> str:
        """Return the text that can no longer become part of a stop string."""
        free = len(self._held) - (0 if self.is_found else self._num_of_stop())
        taken, self._held = self._held[:free], self._held[free:]
        return taken

    def flush(self) -> str:
        """Return all remaining text, at the end of the response."""
        taken, self._held = self._held, ""
        return taken

    def _num_of_stop(self) -> int:
        """Return the length of the longest end of the text that begins a stop string."""
        for length in range(min(self._longest - 1, len(self._held)), 0, -1):
            tail = self._held[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
