"""Text that knows, for each of its characters, if the chat template wrote it or a client sent it."""

from collections.abc import Iterable, Iterator
from typing import Any, Self, SupportsIndex

TEMPLATE, CLIENT = "t", "c"
"""Marks of a character that the template wrote, and of any other."""


class Traced(str):
    """Text of a template, with text of clients in it.

    It compares and hashes as its characters do, so templates decide as they do over plain text. Operations
    that are not defined here return plain text. All plain text counts as the client's: that is the safe side.

    Attributes:
        marks: The mark of each character.
    """

    __slots__ = ("marks",)
    marks: str

    def __new__(cls, text: str = "", marks: str | None = None) -> Self:
        """Return the text with its marks, by default those of a client's text."""
        made = super().__new__(cls, text)
        made.marks = CLIENT * len(text) if marks is None else marks
        return made

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> "Traced":
        return joined((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> "Traced":
        return joined((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> "Traced":
        return Traced(super().__mul__(count), self.marks * count)

    __rmul__ = __mul__

    def __getitem__(self, key: SupportsIndex | slice) -> "Traced":
        return Traced(super().__getitem__(key), self.marks[key])

    def __iter__(self) -> Iterator["Traced"]:
        return map(Traced, super().__iter__(), self.marks)

    def join(self, items: Iterable[str], /) -> "Traced":
        first, *rest = [*items] or [""]
        return joined((first, *(part for item in rest for part in (self, item))))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> "Traced":
        if not old:
            return Traced(super().replace(old, new, count))
        return traced(new).join(self.split(old, count))

    def strip(self, chars: str | None = None, /) -> "Traced":
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> "Traced":
        return self[len(self) - len(super().lstrip(chars)) :]

    def rstrip(self, chars: str | None = None, /) -> "Traced":
        return self[: len(super().rstrip(chars))]

    def removeprefix(self, prefix: str, /) -> "Traced":
        return self[len(self) - len(super().removeprefix(prefix)) :]

    def removesuffix(self, suffix: str, /) -> "Traced":
        return self[: len(super().removesuffix(suffix))]

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> Any:
        return self._pieces(super().split(sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> Any:
        return self._pieces(super().rsplit(sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> Any:
        lines = self._pieces(super().splitlines(keepends=True), "")
        return [line[: len(kept)] for line, kept in zip(lines, super().splitlines(keepends), strict=True)]

    def partition(self, sep: str, /) -> Any:
        return tuple(self._pieces(super().partition(sep), ""))

    def rpartition(self, sep: str, /) -> Any:
        return tuple(self._pieces(super().rpartition(sep), ""))

    def upper(self) -> "Traced":
        return self._recased(super().upper())

    def lower(self) -> "Traced":
        return self._recased(super().lower())

    def title(self) -> "Traced":
        return self._recased(super().title())

    def capitalize(self) -> "Traced":
        return self._recased(super().capitalize())

    def _recased(self, text: str) -> "Traced":
        """Return the text in another case; a few characters get longer, and then no position is certain."""
        return Traced(text, self.marks if len(text) == len(self) else None)

    def _pieces(self, pieces: Iterable[str], sep: str | None) -> list["Traced"]:
        """Return the pieces, in order, with their marks; None is a separator of white space."""
        found, end = list[Traced](), 0
        for piece in pieces:
            start = self.find(piece, end) if sep is None else end
            found.append(self[start : start + len(piece)])
            end = start + len(piece) + len(sep or "")
        return found


def of_template(text: str) -> Traced:
    """Return text that the template wrote."""
    return Traced(text, TEMPLATE * len(text))


def traced(text: str) -> Traced:
    """Return a text as it is if it is traced, else as a client's."""
    return text if isinstance(text, Traced) else Traced(text)


def joined(parts: Iterable[str]) -> Traced:
    """Return the parts as one text."""
    texts = tuple(parts)
    marks = (part.marks if isinstance(part, Traced) else CLIENT * len(part) for part in texts)
    return Traced("".join(texts), "".join(marks))
