"""The bytes that the tokens of a vocabulary stand for, by their names in it. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

SPACE = "▁"
"""Character for a space in the tokens of SentencePiece."""

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
NESTED = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}
"""Key of the parts of a sequence, by kind of part of a `tokenizer.json`."""


class TokenBytes:
    """Bytes of tokens.

    Attributes:
        marks_spaces: True if a space has a character of its own, so that this character cannot be written.
        are_known: False for other kinds of vocabularies, whose tokens have a text only beside each other.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        """Take the parts `decoder` and `pre_tokenizer` of a `tokenizer.json`, given as plain data.

        Raises:
            KeyError, TypeError: They are no parts of a tokenizer.
        """
        decoders = parts_of(spec, "decoder")
        kinds = {part["type"] for part in (*decoders, *parts_of(spec, "pre_tokenizer"))}
        self.marks_spaces = any(map(marks_spaces, decoders))
        self._letters = _byte_letters() if "ByteLevel" in kinds else {}
        self.are_known = bool(self._letters) or self.marks_spaces or "ByteFallback" in kinds

    def of(self, token: str) -> bytes:
        """Return the bytes that an ordinary token adds to a text."""
        if (found := _BYTE.fullmatch(token)) and not self._letters:
            return bytes((int(found[1], 16),))
        if self._letters and self._letters.keys() >= set(token):
            return bytes(self._letters[letter] for letter in token)
        return self.of_text(token)

    def of_text(self, token: str) -> bytes:
        """Return the bytes of a token that stands for its text, as one that was added to the vocabulary."""
        text = token.replace(SPACE, " ") if self.marks_spaces else token
        return text.encode("utf-8", "replace")


def marks_spaces(part: Mapping[str, Any]) -> bool:
    """Return True for a part that turns spaces into `SPACE`, or back."""
    if part["type"] == "Replace":
        return SPACE in (part["content"], part["pattern"].get("String"))
    return bool(part["type"] == "Metaspace" and part.get("replacement", SPACE) == SPACE)


def parts_of(spec: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    """Return the parts of a kind in order, without sequences."""

    def flat(part: Any) -> Iterator[Mapping[str, Any]]:
        if part is not None and part["type"] == "Sequence":
            for each in part[NESTED[kind]]:
                yield from flat(each)
        elif part is not None:
            yield part

    return list(flat(spec.get(kind)))


def _byte_letters() -> dict[str, int]:
    """Return the byte of each letter of byte-level tokens: printable ones stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
