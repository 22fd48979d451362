"""The choice between the ways to map drafts, by measured rounds. Pure."""

from collections.abc import Mapping, Sequence

from fly.ewma import RecentMean
from services.drafter.vocabulary.mapping import VocabularyMap
from services.drafter.vocabulary.streams import Way

_MEMORY_TOKENS = 1000.0
_TRIAL_TOKENS = 200.0
"""Tokens of each way before they are compared."""
_PROBE_EVERY = 13
"""One sequence in this many uses another way than the best one."""
_LONGEST = 3.0
"""Longest time per token that counts in full, by the mean: a pause says nothing about a way."""


class WayChoice:
    """The choice of a replica for each new sequence: the way with the most tokens per second of whole rounds.

    Attributes:
        excluded: Biases that leave the drafter only tokens of both vocabularies.
    """

    def __init__(self, ways: Sequence[Way], mapping: VocabularyMap) -> None:
        """Choose among some ways; a single one is always used."""
        self.excluded: Mapping[int, float] = {
            token: float("-inf") for token in range(len(mapping.drafter)) if token not in mapping.to_target
        }
        self._token_s = {way: RecentMean(0.0, _MEMORY_TOKENS) for way in ways}
        self._num_chosen = 0

    @property
    def best(self) -> Way:
        """The way that sequences use by now."""
        means = self._token_s
        fewest = min(means, key=lambda way: means[way].weight)
        if means[fewest].weight < _TRIAL_TOKENS:
            return fewest
        return min(means, key=lambda way: means[way].value)

    def next(self) -> Way:
        """Return the way of a new sequence."""
        self._num_chosen += 1
        best = self.best
        others = [way for way in self._token_s if way is not best]
        return others[0] if others and self._num_chosen % _PROBE_EVERY == 0 else best

    def record(self, way: Way, num_tokens: int, seconds: float) -> None:
        """Record a round with `num_tokens` of the response, at least 1."""
        mean, token_s = self._token_s[way], seconds / num_tokens
        if mean.weight:
            token_s = min(token_s, _LONGEST * mean.value)
        mean.add(token_s, num_tokens)
