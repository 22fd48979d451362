"""The bytes of a token sequence, and the places where a text can be tokenized again. Pure."""

from bisect import bisect_right
from collections.abc import Iterable

LOOKBACK = 64
"""Most bytes before a change that are tokenized again, up to the start of a token."""

MARK = 0xFF
"""First and last byte of a special token that both vocabularies have; no text contains it."""

_WHITESPACE = b" \t\n\r"


class Spelling:
    """The bytes of a token sequence, and where each token ends; a token may have no bytes.

    Attributes:
        data: The bytes of all tokens.
        ends: For each token the number of bytes up to its end.
    """

    __slots__ = ("data", "ends")

    def __init__(self) -> None:
        self.data = bytearray()
        self.ends: list[int] = []

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.ends)

    def extend(self, images: Iterable[bytes]) -> None:
        """Append tokens, given by their bytes."""
        data, ends = self.data, self.ends
        for image in images:
            data += image
            ends.append(len(data))

    def truncate(self, num_tokens: int) -> None:
        """Drop all tokens from this one on."""
        del self.data[self.start(num_tokens) :]
        del self.ends[num_tokens:]

    def start(self, index: int) -> int:
        """Return the number of bytes before a token, which may be the one after the last."""
        return self.ends[index - 1] if index else 0

    def num_within(self, offset: int) -> int:
        """Return the number of tokens that end at or before `offset`."""
        return bisect_right(self.ends, offset)


def anchor(spelling: Spelling, offset: int, data: bytes | bytearray) -> int:
    """Return the number of tokens that a change of the bytes from `offset` on leaves as they are.

    The rest starts with a word of the new bytes `data`, if one starts at a token within `LOOKBACK` bytes:
    tokenizers divide a text into words before anything else.
    """
    index = spelling.num_within(offset)
    while index > 0:
        start = spelling.start(index)
        if start <= offset - LOOKBACK or starts_word(data, start):
            return index
        index -= 1
    return 0


def starts_word(data: bytes | bytearray, offset: int) -> bool:
    """Return True if the byte at `offset` begins the space before a word, or follows a special token."""
    if offset == 0 or data[offset - 1] == MARK:
        return True
    return offset < len(data) and data[offset] in _WHITESPACE and data[offset - 1] not in _WHITESPACE


def complete_length(data: bytes) -> int:
    """Return the length of the bytes without a character at their end that is incomplete in UTF-8."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if needed > back else len(data)
        if byte < 0x80:
            break
    return len(data)
