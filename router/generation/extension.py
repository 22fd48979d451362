"""The length of an extension: the number of tokens that the target decodes in one step without drafts."""

from flyserve.core.ewma import Ewma
from flyserve.core.round_record import RoundRecord

_NEWEST_SHARE = 0.2
_LARGEST_GROWTH = 2
_LEAST_TOKENS = 4
"""Fewer tokens are decoded one by one: their steps cost little beside forwards this long, and sequences whose
steps end at different times share fewer forwards.

NOTE: that does not hold where shared forwards save little, as on llama.cpp, nor for a model that answers
alone: there each step saved is one less on cores that its forwards need.
"""


class ExtensionLength:
    """Chooses how many tokens the target decodes in one step; pure.

    The client gets these tokens together. So the forwards of a step take at most `interval_s`, by those of
    the steps before, or of other responses. The first step has one token, which the client gets at once. No
    later one has more than twice as many as the longest before it, or than other responses show to fit.
    The wait for the first forward does not count: the more a step waits, the less one token at a time pays.
    """

    def __init__(self, interval_s: float, usual_s: float | None = None, decodes_ahead: bool = False) -> None:
        """Let the forwards of a step take at most `interval_s` seconds; 0 decodes one token per step.

        `usual_s` is the duration of such a forward in other responses of the target, if it is known;
        `decodes_ahead` is True for a target to which shared forwards are worth little.
        """
        self._interval_s = interval_s
        self._least_tokens = 1 if decodes_ahead else _LEAST_TOKENS
        self._usual_s = usual_s
        self._token_s = Ewma(_NEWEST_SHARE)
        self._has_begun = False
        self._longest = 0 if usual_s is None else self.fitting(usual_s)

    def choose(self, most: int) -> int:
        """Return the number of tokens of the next step, from 1 to `most`."""
        is_first, self._has_begun = not self._has_begun, True
        token_s = self._usual_s if self._token_s.value is None else self._token_s.value
        if is_first or token_s is None:
            return 1
        return max(1, min(self.fitting(token_s), _LARGEST_GROWTH * self._longest, most))

    def fitting(self, token_s: float) -> int:
        """Return the number of tokens that fit into a step if each takes `token_s`; 1 if too few do."""
        fitting = int(self._interval_s / max(token_s, 1e-9))
        return fitting if fitting >= self._least_tokens else 1

    def record(self, round: RoundRecord) -> None:
        """Record a round whose tokens one model decoded by itself."""
        if round.num_decoded and not round.is_prefill:
            self._token_s.add((round.forward_s or round.answer_s) / round.num_decoded)
            self._longest = max(self._longest, round.num_decoded)
