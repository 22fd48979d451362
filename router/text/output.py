"""A response's text: decided tokens in, text to stream out, which ends before a stop string."""

from collections.abc import Sequence

from router.text.detokenizer import Decode, Detokenizer
from router.text.stop_strings import StopStrings


class ResponseText:
    """Detokenizes what is decided and looks for stop strings in it; its `find_stop` is a `StopFinder`."""

    def __init__(self, decode: Decode, prompt_tail: Sequence[int], stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(decode, prompt_tail)
        self._stops = StopStrings(stops)
        self._token_texts: list[str] = []

    def find_stop(self, ids: Sequence[int]) -> int | None:
        """Takes decided tokens; how many of them the response keeps when they complete a stop string.

        Token by token, so that the answer does not depend on how many come at a time.
        """
        for index, token in enumerate(ids):
            text = self._detokenizer.push((token,))
            self._token_texts.append(text)
            if self._stops.push(text):
                return index + 1
        return None

    def resume(self, ids: Sequence[int]) -> bool:
        """Takes the tokens that a client has already; False where they complete a stop string.

        Their text is not given out again, but for what was withheld of it.
        """
        if self.find_stop(ids) is not None:
            return False
        self.take_token_texts()
        self.take()
        return True

    def take_token_texts(self) -> tuple[str, ...]:
        """What each token added that `find_stop` took since the last call, whether or not it is withheld."""
        taken, self._token_texts = tuple(self._token_texts), []
        return taken

    def take(self) -> str:
        """Text that may be streamed; what may begin a stop string is withheld."""
        return self._stops.take()

    def flush(self) -> str:
        """What was withheld, at the response's end."""
        self._stops.push(self._detokenizer.flush())
        return self._stops.flush()
