"""Incremental detokenization: return text in whole characters while tokens arrive."""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

_INCOMPLETE = "\ufffd"
_MAX_PENDING = 64
"""Tokens in a row without text, after which the pending bytes are returned as U+FFFD: bounds the cost."""


class Detokenizer:
    """Text of a growing sequence of token ids; special tokens have none.

    All returned pieces joined are the text of all ids. A piece never ends within a UTF-8 character.

    NOTE: `DecodeStream` keeps a character that is incomplete at the end for ever, decodes all pending ids
    again with every token, and raises where the text before a token changes with it. So pending ids are
    counted, and the stream is replaced where it cannot go on.
    """

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int] = ()) -> None:
        """Start after `context`: the last tokens of the prompt, whose text is not returned."""
        self._tokenizer = tokenizer
        self._decoded = list(context)
        self._pending: list[int] = []
        self._skip = 0
        self._stream = self._new_stream()

    def push(self, token: int) -> str:
        """Return the text that is complete with this token; empty while a character is incomplete."""
        self._pending.append(token)
        try:
            text = self._stream.step(self._tokenizer, token)
        except Exception:
            # The stream's own error type is not public: it means "the text of the earlier tokens changed".
            return self.flush()
        if text is None:
            return self.flush() if len(self._pending) > _MAX_PENDING else ""
        self._decoded, self._pending = self._pending, []
        skip, self._skip = self._skip, 0
        return str(text)[skip:]

    def flush(self) -> str:
        """Return the text of the pending ids; an incomplete character becomes U+FFFD."""
        if not self._pending:
            return ""
        text = self._decode(self._decoded + self._pending)[len(self._decode(self._decoded)) :]
        self._decoded, self._pending = self._pending, []
        self._stream = self._new_stream()
        return text

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def _new_stream(self) -> DecodeStream:
        """Start behind the decoded ids; their text comes once more where it ends within a character."""
        before = self._decode(self._decoded)
        self._skip = len(before) if before.endswith(_INCOMPLETE) else 0
        return DecodeStream(self._decoded, skip_special_tokens=True)
