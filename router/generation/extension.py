"""The length of an extension: the number of tokens that the target decodes in one step without drafts."""

from fly.ewma import Ewma

_NEWEST_SHARE = 0.2
_LARGEST_GROWTH = 2
_LEAST_TOKENS = 4
"""Fewer tokens are decoded one by one: their steps cost little beside forwards this long, and sequences whose
steps end at different times share fewer forwards.

NOTE: that does not hold for a target on another engine, which decodes on between the steps: there each step
saved is one less on cores that its forwards need.
"""
_MOST_DOUBLINGS = 32


class ExtensionLength:
    """Chooses how many tokens the target decodes in one step; pure.

    The client gets these tokens together. So the forwards of a step take at most `interval_s`, by those of
    the steps before; the first one has one token, and no step has more than twice as many as the last one.
    The wait for the first forward does not count: the more a step waits, the less one token at a time pays.

    A drafter may have nothing to propose, as a look-up engine without a match. It is asked again after every
    step, so after the first such answer a step has one token, in order not to miss the next match. After each
    further one in a row it may have twice as many, so text that never repeats costs few requests.
    """

    def __init__(self, interval_s: float, decodes_ahead: bool = False) -> None:
        """Let the forwards of a step take at most `interval_s` seconds; 0 decodes one token per step.

        `decodes_ahead` is True for a target that decodes on between the steps.
        """
        self._interval_s = interval_s
        self._least_tokens = 1 if decodes_ahead else _LEAST_TOKENS
        self._token_s = Ewma(_NEWEST_SHARE)
        self._last = 0
        self._empty_drafts = 0
        self._follows_empty_draft = False

    def choose(self, most: int) -> int:
        """Return the number of tokens of the next step, from 1 to `most`."""
        follows_empty_draft, self._follows_empty_draft = self._follows_empty_draft, False
        if self._token_s.value is None:
            return 1
        fitting = int(self._interval_s / max(self._token_s.value, 1e-9))
        if fitting < self._least_tokens:
            return 1
        if follows_empty_draft:
            most = min(most, _LARGEST_GROWTH ** (self._empty_drafts - 1))
        return max(1, min(fitting, _LARGEST_GROWTH * self._last, most))

    def record_draft(self, num_tokens: int) -> None:
        """Record the drafter's answer in this round, which may be empty."""
        self._empty_drafts = 0 if num_tokens else min(_MOST_DOUBLINGS, self._empty_drafts + 1)
        self._follows_empty_draft = not num_tokens

    def record(self, num_tokens: int, forward_s: float) -> None:
        """Record a step without drafts whose forwards decoded `num_tokens` in `forward_s` seconds."""
        self._token_s.add(forward_s / num_tokens)
        self._last = num_tokens
