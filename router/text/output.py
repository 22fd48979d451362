"""Response text: detokenize decided tokens, return text or parts to stream, end before a stop string."""

from collections.abc import Collection, Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from router.text.stop_strings import StopStrings
from router.tools.message import Message, MessageFormat
from router.tools.parts import Parts

_INCOMPLETE = "\ufffd"
_RESUMED_AT_ONCE = 256
"""Tokens of a resumed response after which their text is dropped, so that no text grows with the response."""
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


class ResponseText:
    """Detokenize decided tokens and search them for stop strings; `find_stop` is a `StopFinder`.

    A token that ends the response has no text, as in vLLM and SGLang: it is not part of the answer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_tail: Sequence[int],
        stops: Sequence[str],
        ending_ids: Collection[int] = (),
        min_tokens: int = 0,
        form: MessageFormat | None = None,
    ) -> None:
        """Start a text. Stop strings count that end after `min_tokens` tokens.

        With the format of a message they are searched in its answer only, and the text has parts.
        """
        self._ending_ids = ending_ids
        self._detokenizer = Detokenizer(tokenizer, prompt_tail)
        self._stops = StopStrings(stops)
        self._stops.is_idle = min_tokens > 0
        self._num_idle = min_tokens
        self._message = None if form is None else Message(form, self._stops)
        self._token_texts: list[str] = []

    def find_stop(self, ids: Sequence[int]) -> int | None:
        """Add decided tokens; return how many of them the response keeps if they complete a stop string.

        Works token by token, so that the result does not depend on how many tokens arrive at a time.
        """
        for index, token in enumerate(ids):
            text = "" if token in self._ending_ids else self._detokenizer.push(token)
            self._token_texts.append(text)
            message = self._message
            if self._stops.push(text) if message is None else message.push(token, text):
                return index + 1
            if self._num_idle:
                self._num_idle -= 1
                self._stops.is_idle = self._num_idle > 0
        return None

    def resume(self, ids: Sequence[int]) -> bool:
        """Add the tokens that a client already has; return False if they complete a stop string.

        Their text is not returned again, except for the part that had been withheld.
        """
        for start in range(0, len(ids), _RESUMED_AT_ONCE):
            if self.find_stop(ids[start : start + _RESUMED_AT_ONCE]) is not None:
                return False
            self.take_token_texts()
            self.take()
        return True

    def take_token_texts(self) -> tuple[str, ...]:
        """Return the text of each token added since the last call, withheld text included."""
        taken, self._token_texts = tuple(self._token_texts), []
        return taken

    def take(self) -> str:
        """Return the text that may be streamed; text that may begin a stop string stays withheld."""
        return self._stops.take()

    def flush(self) -> str:
        """Return the withheld text at the end of the response."""
        self._stops.push(self._detokenizer.flush())
        return self._stops.flush()

    def take_new(self, is_last: bool) -> tuple[str, Parts | None]:
        """Return the new text, and the parts of a message with a format; at its end what was withheld, too.

        The text of a message is its content.
        """
        message = self._message
        if message is None:
            return self.flush() if is_last else self.take(), None
        if is_last:
            message.finish(self._detokenizer.flush())
        parts = message.take()
        return parts.content, parts
