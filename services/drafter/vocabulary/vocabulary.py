"""One vocabulary: the bytes of its tokens, and the tokens of any bytes."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flyserve.core.errors import ModelError, describe
from services.common.token_bytes import SPACE
from services.drafter.vocabulary.pieces import exact_spec, read_pieces

_PROBE = "Any text, 123 words,\n\tin \u65e5\u672c\u8a9e and e\u0301 \U0001f642  "
_WRITTEN = bytes((*b"\t\n", *range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF1)))
"""Bytes of written text: UTF-8 without control characters and without planes that are nearly empty."""
_REPLACEMENT = ord("?")
"""Byte in place of one without a token."""
_ESCAPED = "\udc80-\udcff"
"""Bytes that are no UTF-8, as Python decodes them."""


class Vocabulary:
    """A tokenizer between tokens and bytes. Bytes need not be a text: a sequence may end within a character.

    Attributes:
        name: Folder of the tokenizer, for messages.
        images: Bytes of each token by its id; of a special token its name.
        specials: Ids of the special tokens by their names.
        lead: Special tokens that the tokenizer puts before every text.
        spellable: Translation table of bytes: those without a token become a question mark.
    """

    def __init__(self, spec: dict[str, Any], name: str) -> None:
        """Take the content of a `tokenizer.json` as plain data.

        Raises:
            ModelError: It is not a tokenizer.
        """
        from tokenizers import Tokenizer

        try:
            pieces = read_pieces(spec)
            self._tokenizer = Tokenizer.from_str(json.dumps(exact_spec(spec)))
        except Exception as error:  # the library raises no type of its own
            raise ModelError(f"{name} is not a tokenizer: {describe(error)}") from error
        # A text that spells out a special token is text.
        self._tokenizer.encode_special_tokens = True
        self.name = name
        self.images, self.specials, self.lead = pieces.images, pieces.specials, pieces.lead
        self.special_ids = frozenset(self.specials.values())
        self._by_byte = self._byte_tokens()
        spelled = enumerate(self._by_byte)
        self.spellable = bytes(_REPLACEMENT if token is None else byte for byte, token in spelled)
        self._unwritable = re.compile(f"([{_ESCAPED}{SPACE if pieces.marks_spaces else ''}]+)")

    @classmethod
    def load(cls, folder: Path) -> "Vocabulary":
        """Read the tokenizer of a model folder.

        Raises:
            ModelError: There is none, or it cannot be read.
        """
        path = folder / "tokenizer.json"
        try:
            spec = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelError(f"{path} cannot be read as a tokenizer: {describe(error)}") from error
        return cls(spec, str(folder))

    def __len__(self) -> int:
        """Return the exclusive upper limit of the token ids."""
        return len(self.images)

    def encode(self, data: bytes | bytearray) -> list[int]:
        """Return ordinary tokens with exactly these bytes; those up to the first byte without a token."""
        text = data.decode("utf-8", "surrogateescape")
        ids = list[int]()
        for index, span in enumerate(self._unwritable.split(text)):
            if not span:
                continue
            written = span.encode("utf-8", "surrogateescape")
            found = self._spell(written) if index % 2 else self._tokenize(span, written)
            ids += found
            if sum(len(self.images[token]) for token in found) < len(written):
                break
        return ids

    def require_written_text(self) -> None:
        """Raise ModelError unless each byte of written text has a token, and texts keep their characters."""
        if missing := [byte for byte in _WRITTEN if self._by_byte[byte] is None]:
            raise ModelError(
                f"{self.name}: the tokenizer has no token for {len(missing)} of {len(_WRITTEN)} bytes,"
                f" such as {missing[0]:#04x}: it cannot draft for another vocabulary"
            )
        if self._join(self._tokens_of(_PROBE)) != _PROBE.encode():
            raise ModelError(
                f"{self.name}: the tokenizer changes texts, so it cannot draft for another vocabulary"
            )

    def _byte_tokens(self) -> list[int | None]:
        """Return the token of each byte alone; None if there is none."""
        tokens: list[int | None] = [None] * 0x100
        for token, image in enumerate(self.images):
            if len(image) == 1 and token not in self.special_ids:
                tokens[image[0]] = token
        return tokens

    def _spell(self, data: bytes) -> list[int]:
        """Return a token for each byte, up to the first byte without one."""
        ids = list[int]()
        for byte in data:
            if (token := self._by_byte[byte]) is None:
                break
            ids.append(token)
        return ids

    def _tokenize(self, text: str, data: bytes) -> list[int]:
        """Return the tokens of a text; from the first one with other bytes on, single bytes."""
        ids, end = self._tokens_of(text), 0
        if self._join(ids) == data:
            return ids
        for index, token in enumerate(ids):
            image = self.images[token]
            if not image or not data.startswith(image, end):
                return ids[:index] + self._spell(data[end:])
            end += len(image)
        return ids + self._spell(data[end:])

    def _tokens_of(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _join(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.images[token] for token in ids)
