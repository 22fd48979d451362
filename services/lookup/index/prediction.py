"""Drafts from a predicted response: where the response is in the prediction, and what follows there."""

from collections.abc import Iterator, Sequence
from itertools import islice

_FIRST_DRAFT = 8
"""Most tokens of the first draft, before anything has shown that the prediction fits."""
_LONGEST_MATCH = 16
"""Last tokens of the response that are compared, at most."""
_NEAR = 64
"""Tokens of the prediction after the place where the response has left it, in which one token is searched."""
_NEAR_TRIES = 2
"""Drafts in a row from a place that one token has shown."""
_SEARCHED = 4096
"""Tokens of the prediction before and after the expected place, in which several tokens are searched."""
_MAX_COMPARED = 32
"""Occurrences of the last token that are compared there, the nearest ones before and after the expected place
each: a prediction may be one token, repeated."""
_FEWEST_MATCHED = 3
"""Tokens that must match there, more after drafts that were wrong."""
_GOOD_DRAFT = 3
"""Accepted tokens after which the prediction is followed as if nothing had been wrong."""


class PredictionLookup:
    """The drafts of one response from its prediction; pure.

    The response is expected to follow the prediction token by token. It has left it where a token differs.
    Then some tokens were replaced, inserted or deleted, so the next token of the response that is also in the
    prediction, soon after that place, is where it probably continues. If that is wrong, several tokens must
    match. With every wrong draft more of them must match: a prediction that has nothing to do with the
    response is soon ignored.
    """

    def __init__(self, prediction: Sequence[int], prompt_length: int) -> None:
        """Predict the tokens after a prompt of `prompt_length` tokens."""
        self._prediction = tuple(prediction)
        self._prompt_length = prompt_length
        self._length, self._position = prompt_length, 0
        self._left: int | None = None
        self._num_tries = self._num_wrong = 0

    def propose(self, ids: Sequence[int], most: int) -> tuple[int, ...]:
        """Return the continuation of the sequence `ids`, at most `most` tokens; empty if none is likely."""
        if not self._prediction:
            return ()
        position = self._locate(ids, self._position + len(ids) - self._length)
        if position is None:
            return ()
        self._length, self._position = len(ids), position
        if len(ids) == self._prompt_length:
            most = min(most, _FIRST_DRAFT)
        return self._prediction[position : position + most]

    def record(self, num_accepted: int) -> None:
        """Record how many tokens of the last draft were accepted."""
        if num_accepted >= _GOOD_DRAFT:
            self._num_wrong, self._num_tries = 0, _NEAR_TRIES
        elif not num_accepted:
            self._num_wrong += 1

    def _locate(self, ids: Sequence[int], expected: int) -> int | None:
        """Return the position in the prediction of the token after `ids`; None if it is unknown."""
        if len(ids) == self._prompt_length:
            return 0
        if self._num_matched(ids, expected) > self._num_wrong:
            self._left = None
            return expected
        if self._left is None:
            self._left = max(0, expected - 1)
        near = self._prediction[self._left : self._left + _NEAR]
        if not self._num_tries or ids[-1] not in near:
            return self._search(ids, expected)
        self._num_tries -= 1
        return self._left + near.index(ids[-1]) + 1

    def _search(self, ids: Sequence[int], expected: int) -> int | None:
        """Return the position after the longest match; of equally long ones the nearest to `expected`."""
        least = _FEWEST_MATCHED + self._num_wrong
        if least > _LONGEST_MATCH:
            return None
        found = list[tuple[int, int, int]]()
        for position in self._positions(ids[-1], expected):
            if (matched := self._num_matched(ids, position)) >= least:
                found.append((matched, -abs(position - expected), position))
        return max(found)[2] if found else None

    def _positions(self, token: int, expected: int) -> Iterator[int]:
        """Yield the positions after the nearest occurrences of a token, first those after `expected`."""
        first, stop = max(0, expected - _SEARCHED), max(0, expected + _SEARCHED)
        middle = max(0, min(expected, len(self._prediction)))
        for index in islice(_indices(self._prediction[middle:stop], token), _MAX_COMPARED):
            yield middle + index + 1
        for index in islice(_indices(self._prediction[first:middle][::-1], token), _MAX_COMPARED):
            yield middle - index

    def _num_matched(self, ids: Sequence[int], position: int) -> int:
        """Return how many last tokens of the response, at most 16, are those before a position."""
        if position > len(self._prediction):
            return 0
        most, matched = min(_LONGEST_MATCH, len(ids) - self._prompt_length, position), 0
        while matched < most and ids[-1 - matched] == self._prediction[position - 1 - matched]:
            matched += 1
        return matched


def _indices(tokens: tuple[int, ...], token: int) -> Iterator[int]:
    """Yield the indices of a token."""
    index = -1
    try:
        while True:
            yield (index := tokens.index(token, index + 1))
    except ValueError:
        return
