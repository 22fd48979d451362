"""The state of a grammar along one response: append, roll back and replay are one operation."""

from collections.abc import Collection, Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flyserve.core.sequence import common_length
from services.common.grammars.library import GrammarError, one_line

if TYPE_CHECKING:
    from llguidance import LLMatcher

Mask = NDArray[np.uint32]
"""Packed bits, one per token of the vocabulary, the lowest bit first; 1 allows the token."""
_BITS = 32


class GrammarFollower:
    """Follows one response through its grammar.

    The tokens of each call are those of the whole response. Their common beginning with the previous ones is
    kept, the rest of the previous ones is rolled back, so a shorter, longer or other response costs only the
    difference. Tokens that end a response are no part of its text: nothing follows them.
    """

    def __init__(self, matcher: "LLMatcher", vocab_size: int, eos_ids: Collection[int] = ()) -> None:
        """Take a matcher at the start of its grammar; `eos_ids` are those that the library allows itself."""
        self._matcher = matcher
        self._num_words = -(-vocab_size // _BITS)
        self._eos_ids = tuple(eos_ids)
        self._tokens: list[int] = []
        self._forced: list[int] = []
        """Tokens of forced text, from `_forced_from` of the response on."""
        self._forced_from = 0

    def move(self, tokens: Sequence[int], kept: int = 0) -> bool:
        """Move to the state after a response; return False if the grammar excludes one of its tokens.

        The first `kept` tokens of the response are as in the last call; `tokens` are those after them.

        Raises:
            GrammarError: The grammar has exceeded a limit.
        """
        if kept > len(self._tokens):  # one of those is excluded
            return False
        tokens, own = list(tokens), self._tokens[kept:]
        common = len(own) if tokens[: len(own)] == own else common_length(own, tokens)
        self._roll_back(len(own) - common)
        return self._append(tokens[common:])

    def mask(self, ending_ids: Collection[int]) -> Mask:
        """Return the tokens that may follow.

        The ending ones are allowed where the grammar accepts, and where their own text may come next.

        Raises:
            GrammarError: The grammar has exceeded a limit.
        """
        mask = np.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=np.uint32)[: self._num_words]
        self._check()
        for token in self._eos_ids:
            _set(mask, token, False)
        if self._matcher.is_accepting():
            for token in ending_ids:
                _set(mask, token, True)
        return mask

    def masks(
        self, tokens: Sequence[int], drafts: Sequence[int], ending_ids: Collection[int]
    ) -> Iterator[Mask]:
        """Yield the mask after a response, and after each of the drafts that the grammar allows.

        No mask follows a draft that is excluded, or a token that ends the response, as drafters may go on
        after one: no later token is part of the response.

        Raises:
            GrammarError: The response is not one of the grammar, or the grammar has exceeded a limit.
        """
        if not set(ending_ids).isdisjoint(tokens):
            return
        if not self.move(tokens):
            raise GrammarError(f"token {len(self._tokens)} of the response is excluded")
        yield (mask := self.mask(ending_ids))
        for draft in drafts:
            if draft in ending_ids or not is_allowed(mask, draft) or not self._append([draft]):
                return
            yield (mask := self.mask(ending_ids))

    def num_allowed(
        self, tokens: Sequence[int], drafts: Sequence[int], ending_ids: Collection[int], kept: int = 0
    ) -> int:
        """Return how many drafts after a response come before the first that the grammar excludes.

        Those from one that ends the response on count as allowed: they are no part of its text. For `kept`
        see `move`.

        Raises:
            GrammarError: The grammar has exceeded a limit.
        """
        text = list(takewhile(lambda draft: draft not in ending_ids, drafts))
        if self.move([*tokens, *text], kept):
            return len(drafts)
        return max(0, len(self._tokens) - kept - len(tokens))

    def forced(self) -> list[int]:
        """Return tokens for the text that must come next whatever is chosen; empty if there is a choice.

        NOTE: the library spells all of that text, so its tokens are kept while the response follows them.
        """
        written = self._tokens[self._forced_from :]
        if len(written) >= len(self._forced) or written != self._forced[: len(written)]:
            written, self._forced_from = [], len(self._tokens)
            self._forced = list(self._matcher.compute_ff_tokens())
        return self._forced[len(written) :]

    def _append(self, tokens: list[int]) -> bool:
        consumed = self._matcher.try_consume_tokens(tokens) if tokens else 0
        self._tokens += tokens[:consumed]
        self._check()
        return consumed == len(tokens)

    def _roll_back(self, num_tokens: int) -> None:
        if num_tokens:
            self._matcher.rollback(num_tokens)
            del self._tokens[-num_tokens:]
            if len(self._tokens) < self._forced_from:
                self._forced, self._forced_from = [], 0

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(one_line(self._matcher.get_error()))


def is_allowed(mask: Mask, token: int) -> bool:
    """Check one bit of a mask; tokens beyond it, and negative ones, are excluded."""
    return 0 <= token < len(mask) * _BITS and bool(mask[token // _BITS] >> np.uint32(token % _BITS) & 1)


def _set(mask: Mask, token: int, value: bool) -> None:
    if token < len(mask) * _BITS:
        bit = np.uint32(1 << token % _BITS)
        mask[token // _BITS] = mask[token // _BITS] | bit if value else mask[token // _BITS] & ~bit
