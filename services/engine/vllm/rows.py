"""Rows of log-probabilities: the most likely tokens at each position, as vLLM returns them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
LogProbs = NDArray[np.float32]

ROWS_KEY = "flyserve_rows"
"""Entry of a request's `extra_args`: number of rows at the end of its prompt whose scores are wanted."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Scores of consecutive positions.

    Attributes:
        ids: Token ids, (rows, 1 + n): the token that follows (drawn, or given in the prompt), then the n most
            likely tokens in descending order.
        logprobs: Their log-probabilities, from the softmax of the raw logits.
    """

    ids: Ids
    logprobs: LogProbs

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def following(self) -> list[int]:
        """The token that follows each position."""
        following: list[int] = self.ids[:, 0].tolist()
        return following

    def within(self, vocab_size: int) -> "Rows":
        """Return the rows with padding last, as impossible: no token beyond the vocabulary may be chosen."""
        is_padding = self.ids >= vocab_size
        if not is_padding.any():
            return self
        logprobs = np.where(is_padding, -np.inf, self.logprobs).astype(np.float32)
        order = np.argsort(is_padding[:, 1:], axis=1, kind="stable") + 1
        order = np.insert(order, 0, 0, axis=1)
        return Rows(np.take_along_axis(self.ids, order, 1), np.take_along_axis(logprobs, order, 1))

    def part(self, start: int, end: int) -> "Rows":
        """Return the rows from `start` to before `end`."""
        return Rows(self.ids[start:end], self.logprobs[start:end])

    @classmethod
    def joined(cls, parts: Sequence["Rows"]) -> "Rows":
        """Return consecutive rows, at least one, as one; all have the same width."""
        return cls(np.concatenate([p.ids for p in parts]), np.concatenate([p.logprobs for p in parts]))


def last_rows(ids: Any, logprobs: Any, count: int, width: int) -> Rows:
    """Return the last `count` of the rows of a prompt, with `width` columns.

    There is a row per token of the prompt except the first; depending on vLLM's runner only those that were
    computed, or all, of which those that the prefix cache held are uninitialised memory. The last ones are
    those that were computed in either case, if the request asked that they be.
    """
    start = len(ids) - count
    return Rows(_array(ids[start:, :width], np.int64), _array(logprobs[start:, :width], np.float32))


def _array(values: Any, dtype: Any) -> Any:
    """Copy a tensor or array: its memory may be reused."""
    return np.array(values, dtype=dtype)
