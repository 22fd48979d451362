"""Token ids of a rendered chat: a control token counts only where the chat template wrote all of it."""

import re
import unicodedata
from itertools import chain, pairwise
from typing import NamedTuple

from tokenizers import AddedToken, Encoding
from tokenizers import Tokenizer as Backend

from flyserve.core.errors import InvalidRequest
from router.text.traced import CLIENT, Traced

_LINE = "\n"
"""Text before a piece of a chat, so that the piece gets nothing that a tokenizer adds to the beginning."""
_UNKNOWN = "\U0010ffff \u16a0 \U0001f9ff"
"""Rare characters: each is text or unknown to a vocabulary, and some are dropped by a normalizer."""
_HTML = re.compile(
    "</?(a|b|blockquote|body|br|caption|code|div|em|h[1-6]|head|hr|html|i|img|li|ol|p|pre|span|strong|sub|sup"
    "|table|tbody|td|tfoot|th|thead|tr|u|ul)/?>"
)


class _Encoded(NamedTuple):
    """Token ids of a piece of a chat, and the control tokens of clients in it, by positions that cut them."""

    ids: list[int]
    cuts: dict[int, int]


class ControlTokens:
    """Control tokens of a tokenizer beside a chat template.

    These are its special tokens, and other added tokens that the template has or that are no ordinary text.
    Some vocabularies also add white space, words and HTML, which are tokens wherever they are.
    """

    def __init__(self, backend: Backend, written: str) -> None:
        """Find the control tokens; `written` is all text that the template may write."""
        added = backend.get_added_tokens_decoder()
        self._backend = backend
        self._names = {token: found.content for token, found in added.items() if _is_control(found, written)}
        self._unknown = self._names.keys() & self._encoding(_UNKNOWN).ids
        self._line = self._encoding(_LINE).ids

    def encode(self, text: Traced) -> tuple[int, ...]:
        """Return the token ids of a chat.

        A control token of which a client wrote a part, or all, is cut, and the pieces are encoded one by one.
        Raise InvalidRequest for one that has a single character.
        """
        pieces, found = [text], [self._beginning(text)]
        while any(encoded.cuts for encoded in found):
            pieces = [
                piece[start:end]
                for piece, encoded in zip(pieces, found, strict=True)
                for start, end in pairwise((0, *encoded.cuts, len(piece)))
            ]
            known = {(piece, piece.marks): piece for piece in pieces[1:]}
            encoded_once = {key: self._continuation(piece) for key, piece in known.items()}
            found = [self._beginning(pieces[0]), *(encoded_once[piece, piece.marks] for piece in pieces[1:])]
        return tuple(chain.from_iterable(encoded.ids for encoded in found))

    def foreign(self, text: Traced) -> set[str]:
        """Return the control tokens in a text that are not the template's."""
        return {self._names[token] for token in self._beginning(text).cuts.values()}

    def _beginning(self, text: Traced) -> _Encoded:
        encoding = self._encoding(text)
        return _Encoded(encoding.ids, self._cuts(text, encoding))

    def _continuation(self, text: Traced) -> _Encoded:
        whole = Traced(_LINE) + text
        encoding, length = self._encoding(whole), len(self._line)
        if encoding.ids[:length] != self._line:
            return self._beginning(text)
        cuts = self._cuts(whole, encoding)
        return _Encoded(encoding.ids[length:], {cut - len(_LINE): token for cut, token in cuts.items()})

    def _cuts(self, text: Traced, encoding: Encoding) -> dict[int, int]:
        """Return the control tokens that the template did not write alone, by a position within each."""
        return {
            cut: token
            for index, token in enumerate(encoding.ids)
            if token in self._names and (cut := self._cut(text, token, *_span(encoding, index)))
        }

    def _cut(self, text: Traced, token: int, start: int, end: int) -> int:
        """Return a position next to a client's character, thus in no token of the template; else 0.

        NOTE: the span of a token may have white space around it, and that of the unknown token any text.
        """
        span = text[start:end]
        name = span.strip() or span
        client = name.marks.find(CLIENT)
        if client < 0 or (token in self._unknown and self._names[token] not in span):
            return 0
        if len(name) == 1:
            found = f"spell out {name!r}, a control token that this model's tokenizer cannot write as text"
            raise InvalidRequest.of("messages", f"{found}: leave it out")
        return start + span.find(name) + max(client, 1)

    def _encoding(self, text: str) -> Encoding:
        return self._backend.encode(text, add_special_tokens=False)


def _span(encoding: Encoding, index: int) -> tuple[int, int]:
    found: tuple[int, int] | None = encoding.token_to_chars(index)
    return found or (0, 0)


def _is_control(token: AddedToken, written: str) -> bool:
    text = token.content
    if token.special or text.isspace():
        return bool(token.special)
    return text in written or not (_HTML.fullmatch(text) or all(map(_is_ordinary, text)))


def _is_ordinary(char: str) -> bool:
    """Return True for letters, marks, numbers, white space (`▁` as well) and symbols such as emoji."""
    kind = unicodedata.category(char)
    return char.isspace() or char in "'-." or kind[0] in "LMN" or kind == "So"
