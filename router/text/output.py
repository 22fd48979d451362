"""Response text: takes decided tokens, returns text to stream, and ends before a stop string."""

from collections.abc import Sequence

from tokenizers import Tokenizer

from router.text.detokenizer import Detokenizer
from router.text.stop_strings import StopStrings


class ResponseText:
    """Detokenize decided tokens and search them for stop strings; `find_stop` is a `StopFinder`."""

    def __init__(self, tokenizer: Tokenizer, prompt_tail: Sequence[int], stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt_tail)
        self._stops = StopStrings(stops)
        self._token_texts: list[str] = []

    def find_stop(self, ids: Sequence[int]) -> int | None:
        """Add decided tokens; return how many of them the response keeps if they complete a stop string.

        Works token by token, so that the result does not depend on how many tokens arrive at a time.
        """
        for index, token in enumerate(ids):
            text = self._detokenizer.push(token)
            self._token_texts.append(text)
            if self._stops.push(text):
                return index + 1
        return None

    def resume(self, ids: Sequence[int]) -> bool:
        """Add the tokens that a client already has; return False if they complete a stop string.

        Their text is not returned again, except for the part that had been withheld.
        """
        if self.find_stop(ids) is not None:
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
