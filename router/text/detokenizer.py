"""Token ids to text, piece by piece: whole characters only, and the pieces joined are the whole text."""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
"""Text of token ids; bytes that make no character yet become U+FFFD."""

_UNFINISHED = "\ufffd"
_MAX_UNFINISHED = 3
"""An unfinished UTF-8 character has at most three bytes, each of which may be shown as a U+FFFD."""
_MAX_WINDOW = 64
"""So many tokens in a row that end within a character are no text: what is there is given out."""


class Detokenizer:
    """Decodes a window that begins one piece before the new tokens, since text may depend on what precedes.

    Each token is decoded twice, whatever the length of the response.
    """

    def __init__(self, decode: Decode, context: Sequence[int] = ()) -> None:
        """Begins after `context`: the last tokens of the prompt, which are not given out."""
        self._decode = decode
        self._window = list(context)
        self._read = len(self._window)
        self._num_given = len(decode(self._window))

    def push(self, ids: Sequence[int]) -> str:
        """The text that has become certain with these tokens."""
        if not ids:
            return ""
        self._window.extend(ids)
        text = self._decode(self._window)
        if text.endswith(_UNFINISHED) and len(self._window) <= _MAX_WINDOW:
            return self._give(text, len(text) - _count_unfinished(text))
        given = self._give(text, len(text))
        self._window = self._window[self._read :]
        self._read = len(self._window)
        self._num_given = len(self._decode(self._window))
        return given

    def flush(self) -> str:
        """What is left at the end of a response, unfinished characters as U+FFFD."""
        text = self._decode(self._window)
        return self._give(text, len(text))

    def _give(self, text: str, end: int) -> str:
        given = text[self._num_given : end]
        self._num_given = max(self._num_given, end)
        return given


def _count_unfinished(text: str) -> int:
    tail = text[-_MAX_UNFINISHED:]
    return len(tail) - len(tail.rstrip(_UNFINISHED))
