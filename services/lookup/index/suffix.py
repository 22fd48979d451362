"""Suffix proposals: predict the next tokens from all earlier occurrences of the last n-grams."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from flyserve.core.sequence import common_length
from services.lookup.index.budget import IndexShare
from services.lookup.index.ngram import NgramIndex
from services.lookup.index.response_cache import END, ORDERS, ResponseCache

_MAX_ORDER = max(ORDERS)
_SHORT = 4
"""Length of an n-gram up to which the sequence counts before other responses. After a longer one an earlier
response to the same prompt is right, also where it departs from a text that the prompt has."""


class NgramSource(Protocol):
    """A source of n-grams other than the sequence itself, such as earlier responses."""

    def followers(self, ngram: tuple[int, ...], limit: int) -> list[int]:
        """Return the tokens that followed an n-gram, the latest first, at most `limit`."""


class SaltedCache:
    """The cached responses of one cache salt."""

    def __init__(self, cache: ResponseCache, salt: str) -> None:
        self._cache = cache
        self._salt = salt

    def followers(self, ngram: tuple[int, ...], limit: int) -> list[int]:
        return self._cache.followers(ngram, self._salt, limit)


class Snippets:
    """Snippets of other responses, as they were received."""

    def __init__(self, share: IndexShare | None = None) -> None:
        self._index = NgramIndex(ORDERS, share)

    def __len__(self) -> int:
        return len(self._index)

    def add(self, snippet: Iterable[int]) -> None:
        """Add a snippet, separated from the one before it."""
        self._index.extend((END, *snippet))

    def followers(self, ngram: tuple[int, ...], limit: int) -> list[int]:
        return self._index.followers(ngram, limit)


@dataclass(frozen=True, slots=True)
class SuffixRule:
    """Weights of the occurrences, and the conditions that end a proposal.

    Attributes:
        min_step: A token with a lower probability, given the tokens before it, ends the proposal.
        min_joint: A lower probability of the whole proposal ends it, too.
        max_occurrences: Occurrences that are counted per n-gram, the latest ones.
        own_weight: Weight of an occurrence in the sequence itself.
        other_weight: Weight of an occurrence in another response.
        weighs_length: An occurrence of an n-gram weighs as much more as the n-gram is longer.
        negligible: Probability left to shorter n-grams below which they are not looked up.
    """

    min_step: float = 0.1
    min_joint: float = 0.1
    max_occurrences: int = 16
    own_weight: float = 2.0
    other_weight: float = 1.0
    weighs_length: bool = False
    negligible: float = 0.1


FOR_TARGET = SuffixRule(min_step=0.3, min_joint=0.3, own_weight=0.4, other_weight=0.4, weighs_length=True)
"""The rule for drafts that a target verifies, where each token costs a row of a forward, and a round without
a draft costs nothing. A single token that occurred once before supports no draft; a match of 16 tokens
supports one of almost any length. Of the weights and thresholds tried on prose, code, edited text and random
tokens, these lose nothing on random tokens and little elsewhere."""


class SuffixProposer:
    """Proposals for one sequence, token by token; each is the most likely one after those before it.

    Three sources are searched for the tokens that followed the last n-grams: the sequence, the drafts that
    were dropped from it (a wrong token is often right a few positions later), and other responses. Longer
    n-grams count first; the probability that they leave open goes to shorter ones (interpolation after Witten
    and Bell, 1991).
    """

    def __init__(
        self,
        others: NgramSource,
        rule: SuffixRule | None = None,
        share: IndexShare | None = None,
        keeps_dropped: bool = True,
    ) -> None:
        """Start with an empty sequence; `others` is the source of other responses.

        If dropped drafts are not kept, proposals depend on the sequence and on `others` alone, however the
        sequence became what it is, once `index` has returned False.
        """
        self._sequence = NgramIndex(ORDERS, share)
        self._dropped = NgramIndex(ORDERS, share)
        self._others = others
        self._rule = rule or SuffixRule()
        self._keeps_dropped = keeps_dropped

    def follow(self, ids: Sequence[int], decided: int) -> None:
        """Set the sequence to `ids`; its first `decided` tokens are as before, the others are compared."""
        start = min(decided, len(self._sequence))
        self.update(ids, start + common_length(self._sequence.tokens(start), ids[start:]))

    def update(self, ids: Sequence[int], unchanged: int) -> None:
        """Set the sequence to `ids`; its first `unchanged` tokens are as before."""
        dropped = self._sequence.tokens(unchanged)
        if dropped and self._keeps_dropped:
            context = self._sequence.tokens(max(0, unchanged - _MAX_ORDER))
            self._dropped.extend([END, *context[: len(context) - len(dropped)], *dropped])
        self._sequence.truncate(unchanged)
        self._sequence.extend(ids[unchanged:])

    def index(self) -> bool:
        """Index the next part of a long sequence, a few milliseconds; return False if none was left."""
        return self._sequence.index()

    def propose(self, max_tokens: int) -> tuple[int, ...]:
        """Return the most likely continuation, up to the first token that is not likely enough."""
        rule, tail = self._rule, self._sequence.tokens(-_MAX_ORDER)
        tokens, joint = list[int](), 1.0
        while len(tokens) < max_tokens:
            token, confidence = self._next(tuple(tail[-_MAX_ORDER:]))
            joint *= confidence
            if confidence < rule.min_step or joint < rule.min_joint:
                break
            tokens.append(token)
            tail.append(token)
        return tuple(tokens)

    def repeat(self, max_tokens: int) -> tuple[int, ...]:
        """Return what followed the last 16 tokens in other responses, as far as these agree; else nothing."""
        tail, tokens = self._sequence.tokens(-_MAX_ORDER), list[int]()
        while len(tail) >= _MAX_ORDER and len(tokens) < max_tokens:
            followers = set(self._others.followers(tuple(tail[-_MAX_ORDER:]), self._rule.max_occurrences))
            if len(followers) != 1 or END in followers:
                break
            tokens += followers
            tail += followers
        return tuple(tokens)

    def _next(self, tail: tuple[int, ...]) -> tuple[int, float]:
        """Return the most likely next token and its probability."""
        probabilities, left = dict[int, float](), 1.0
        for weight, followers in self._occurrences(tail):
            kinds = len(set(followers))
            total = weight * len(followers) + kinds
            share = left * weight / total
            for token in followers:
                probabilities[token] = probabilities.get(token, 0.0) + share
            left *= kinds / total
            if left < self._rule.negligible:
                break
        probabilities.pop(END, None)
        if not probabilities:
            return END, 0.0
        token = max(probabilities, key=probabilities.__getitem__)
        return token, probabilities[token]

    def _occurrences(self, tail: tuple[int, ...]) -> Iterator[tuple[float, list[int]]]:
        """Yield weight and the tokens that followed, the longest n-grams first."""
        rule, limit = self._rule, self._rule.max_occurrences
        own = ((rule.own_weight, self._dropped), (rule.own_weight, self._sequence))
        others = (rule.other_weight, self._others)
        for order in reversed(ORDERS):
            ngram, scale = tail[-order:], order if rule.weighs_length else 1
            if len(ngram) < order:
                continue
            for weight, source in (others, *own) if order > _SHORT else (*own, others):
                if followers := source.followers(ngram, limit):
                    yield scale * weight, followers
