"""A response's text: decided tokens in, text to stream out, which ends before a stop string."""

from collections.abc import Sequence

from router.detokenizer import Decode, Detokenizer
from router.stop_strings import StopStrings


class ResponseText:
    """Detokenizes what is decided and looks for stop strings in it; its `find_stop` is a `StopFinder`."""

    def __init__(self, decode: Decode, prompt_tail: Sequence[int], stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(decode, prompt_tail)
        self._stops = StopStrings(stops)

    def find_stop(self, ids: Sequence[int]) -> int | None:
        """Takes decided tokens; how many of them the response keeps when they complete a stop string.

        The answer does not depend on how many tokens come at a time: the token that first completes a stop
        string is the last.
        """
        if not self._stops:
            self._stops.push(self._detokenizer.push(ids))
            return None
        before, stops_before = self._detokenizer.copy(), self._stops.copy()
        if not self._stops.push(self._detokenizer.push(ids)):
            return None
        self._detokenizer, self._stops = before, stops_before
        for index, token in enumerate(ids):
            if self._stops.push(self._detokenizer.push((token,))):
                return index + 1
        return None

    def take(self) -> str:
        """Text that may be streamed; what may begin a stop string is withheld."""
        return self._stops.take()

    def flush(self) -> str:
        """What was withheld, at the response's end."""
        self._stops.push(self._detokenizer.flush())
        return self._stops.flush()
