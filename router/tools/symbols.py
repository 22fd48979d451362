"""Split decided tokens into text and markers, such as `<tool_call>`."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Symbol(NamedTuple):
    """A piece of text, or a marker."""

    text: str
    is_marker: bool = False


class Symbols:
    """Markers in a growing response.

    A marker that is one token of the vocabulary is found by its id. Then the same characters made of other
    tokens are text. A marker that the vocabulary lacks is found in the text.
    """

    def __init__(self, markers: Mapping[str, int | None]) -> None:
        """Take the token of each marker; None if the vocabulary has none."""
        self._by_id = {token: marker for marker, token in markers.items() if token is not None}
        self._spelled = tuple(marker for marker, token in markers.items() if token is None)
        self._held = ""

    @property
    def num_withheld(self) -> int:
        """Characters that are withheld because they may begin a marker."""
        return len(self._held)

    def text_of(self, token: int, text: str) -> str:
        """Return all text of the symbols that a token adds, that of a marker included."""
        marker = self._by_id.get(token)
        return text if marker is None or marker in text else text + marker

    def push(self, token: int, text: str) -> Iterator[Symbol]:
        """Add a token with its text, which is empty if it is special."""
        marker = self._by_id.get(token)
        if marker is None:
            yield from self.push_text(text)
            return
        yield from self.push_text(text[: text.rfind(marker)] if marker in text else text)
        yield from self.flush()
        yield Symbol(marker, is_marker=True)

    def push_text(self, text: str) -> Iterator[Symbol]:
        """Add text that has no markers with an id."""
        self._held += text
        while found := self._first():
            start, marker = found
            before, self._held = self._held[:start], self._held[start + len(marker) :]
            if before:
                yield Symbol(before)
            yield Symbol(marker, is_marker=True)
        free = len(self._held) - self._num_withheld()
        taken, self._held = self._held[:free], self._held[free:]
        if taken:
            yield Symbol(taken)

    def flush(self) -> Iterator[Symbol]:
        """Return text that was withheld because it may begin a marker."""
        taken, self._held = self._held, ""
        if taken:
            yield Symbol(taken)

    def _first(self) -> tuple[int, str] | None:
        """Return the first marker in the text; at one place the longest."""
        found = [(start, -len(m), m) for m in self._spelled if (start := self._held.find(m)) >= 0]
        return (min(found)[0], min(found)[2]) if found else None

    def _num_withheld(self) -> int:
        longest = max(map(len, self._spelled), default=1)
        for length in range(min(longest - 1, len(self._held)), 0, -1):
            if any(marker.startswith(self._held[-length:]) for marker in self._spelled):
                return length
        return 0
