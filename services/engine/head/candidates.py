"""The tokens that a row of the head may draw, and drawing from them: many rows in one race."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from fly.noise import BLOCK, Floats, Ints, Words, race, race_among
from fly.types import SparseDistribution
from services.engine.head.filters import Logits, log_probabilities


class Lot(NamedTuple):
    """One token to be drawn.

    Attributes:
        row: From whose logits.
        key: Of its noise.
        temperature: Of the softmax.
        floor: Logits below are excluded.
        total: Subtracted from `logit / temperature`; needed only where `less` is.
        less: What the distribution is reduced by: drawn is from (p - q)+.
    """

    row: int
    key: np.uint64
    temperature: float
    floor: float
    total: float = 0.0
    less: SparseDistribution | None = None


class Candidates(Protocol):
    """Logits by row and token."""

    def logits(self, row: int) -> Logits:
        """Of all tokens that the row may draw; not to be changed."""

    def logit(self, row: int, token: int) -> float:
        """Of one token; -inf where the row may not draw it."""

    def top(self, row: int, count: int) -> tuple[Ints, Floats]:
        """Ids and logits of the most likely tokens, in no order."""

    def draw(self, lots: Sequence[Lot]) -> list[int]:
        """Token ids; -1 where nothing is left to draw."""


class FewCandidates:
    """A few tokens per row, named by their ids."""

    def __init__(self, ids: Ints, logits: Logits) -> None:
        """Both are (rows, tokens)."""
        self._ids = ids
        self._logits = logits

    def logits(self, row: int) -> Logits:
        logits: Logits = self._logits[row]
        return logits

    def logit(self, row: int, token: int) -> float:
        found = self._logits[row][self._ids[row] == token]
        return float(found[0]) if found.size else -np.inf

    def top(self, row: int, count: int) -> tuple[Ints, Floats]:
        leading = np.argsort(-self._logits[row], kind="stable")[:count]
        return self._ids[row][leading], self._logits[row][leading].astype(np.float64)

    def draw(self, lots: Sequence[Lot]) -> list[int]:
        rows, keys, *columns = _columns(lots)
        ids = self._ids[rows]
        log_probs = log_probabilities(self._logits[rows], *columns)
        for index, lot in enumerate(lots):
            log_probs[index] = _reduced(log_probs[index], ids[index], lot.less)
        drawn = race_among(ids, log_probs, keys)
        tokens: list[int] = np.where(log_probs.max(axis=1) > -np.inf, drawn, -1).tolist()
        return tokens


class DenseCandidates:
    """The whole vocabulary; what a race does not need is never read."""

    def __init__(self, logits: Logits, rows: Ints, maxima: Logits) -> None:
        """Takes one row of candidates for each of `rows`.

        Args:
            logits: (any, vocabulary).
            rows: Which of them take part.
            maxima: (rows, blocks) the largest logit of each `BLOCK` of their tokens.
        """
        self._logits = logits
        self._rows = rows
        self._maxima = maxima

    def logits(self, row: int) -> Logits:
        logits: Logits = self._logits[self._rows[row]]
        return logits

    def logit(self, row: int, token: int) -> float:
        return float(self._logits[self._rows[row], token])

    def top(self, row: int, count: int) -> tuple[Ints, Floats]:
        logits = self.logits(row)
        count = min(count, len(logits))
        leading = np.argpartition(logits, -count)[-count:]
        return leading, logits[leading].astype(np.float64)

    def draw(self, lots: Sequence[Lot]) -> list[int]:
        rows, keys, *columns = _columns(lots)
        last = self._logits.shape[1] - 1

        def read(indices: Ints, blocks: Ints) -> Floats:
            ids = blocks[:, None] * BLOCK + np.arange(BLOCK)
            logits = self._logits[self._rows[rows[indices]][:, None], np.minimum(ids, last)]
            log_probs = log_probabilities(logits, *(column[indices] for column in columns))
            log_probs[ids > last] = -np.inf
            for place, index in enumerate(indices):
                log_probs[place] = _reduced(log_probs[place], ids[place], lots[index].less)
            return log_probs

        tokens: list[int] = race(log_probabilities(self._maxima[rows], *columns), read, keys).tolist()
        return tokens


def _columns(lots: Sequence[Lot]) -> tuple[Ints, Words, Floats, Floats, Floats]:
    """Rows and keys of the lots, (lots,); floors, temperatures and totals, (lots, 1)."""
    return (
        np.array([lot.row for lot in lots]),
        np.array([lot.key for lot in lots], dtype=np.uint64),
        np.array([[lot.floor] for lot in lots]),
        np.array([[lot.temperature] for lot in lots]),
        np.array([[lot.total] for lot in lots]),
    )


def _reduced(log_probs: Floats, ids: Ints, less: SparseDistribution | None) -> Floats:
    """The logarithm of (p - q)+ for a few tokens."""
    if less is None:
        return log_probs
    q = (ids[:, None] == np.array(less.ids)) @ np.array(less.probabilities)
    with np.errstate(divide="ignore"):
        return np.where(q > 0, np.log(np.maximum(np.exp(log_probs) - q, 0.0)), log_probs)
