"""Stop strings: found across pieces of text; text that may begin one is withheld."""

from collections.abc import Sequence


class StopStrings:
    """Text to stream, searched for stop strings; it ends before the first one found."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self._found = False

    def push(self, text: str) -> bool:
        """Add text; return True if a stop string was found, after which all text is dropped."""
        if self._found:
            return True
        self._held += text
        if starts := [at for stop in self._stops if (at := self._held.find(stop)) >= 0]:
            self._held = self._held[: min(starts)]
            self._found = True
        return self._found

    def take(self) -> str:
        """Return the text that can no longer become part of a stop string."""
        free = len(self._held) - (0 if self._found else self._num_withheld())
        taken, self._held = self._held[:free], self._held[free:]
        return taken

    def flush(self) -> str:
        """Return all remaining text, at the end of the response."""
        taken, self._held = self._held, ""
        return taken

    def _num_withheld(self) -> int:
        """Return the length of the longest end of the text that begins a stop string."""
        for length in range(min(self._longest - 1, len(self._held)), 0, -1):
            tail = self._held[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
