"""Candidate tokens of each row of logits, and sampling from them: many rows in one exponential race."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from fly.noise import BLOCK, Floats, Ints, Words, race, race_among
from fly.types import SparseDistribution
from services.engine.head.filters import Logits, log_probabilities


class RaceEntry(NamedTuple):
    """One token to draw.

    Attributes:
        row: Row of its logits.
        key: Key of its noise.
        temperature: Temperature of the softmax.
        floor: Logits below this are excluded.
        total: Subtracted from `logit / temperature`; needed only together with `subtract`.
        subtract: Distribution q to draw from (p - q)+ instead of p; None draws from p.
    """

    row: int
    key: np.uint64
    temperature: float
    floor: float
    total: float = 0.0
    subtract: SparseDistribution | None = None


class Candidates(Protocol):
    """Logits by row and token."""

    def logits(self, row: int) -> Logits:
        """Return the logits of all tokens that the row may draw; must not be changed."""

    def logit(self, row: int, token: int) -> float:
        """Return the logit of one token; -inf if the row may not draw it."""

    def top(self, row: int, count: int) -> tuple[Ints, Floats]:
        """Return ids and logits of the most likely tokens, in no order."""

    def draw(self, entries: Sequence[RaceEntry]) -> list[int]:
        """Return a token id per entry; -1 where no token has a probability above 0."""


class FewCandidates:
    """A few tokens per row, with their ids."""

    def __init__(self, ids: Ints, logits: Logits) -> None:
        """Take ids and logits, both (rows, tokens)."""
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

    def draw(self, entries: Sequence[RaceEntry]) -> list[int]:
        rows, keys, *columns = _columns(entries)
        ids = self._ids[rows]
        log_probs = log_probabilities(self._logits[rows], *columns)
        for index, entry in enumerate(entries):
            log_probs[index] = _residual(log_probs[index], ids[index], entry.subtract)
        drawn = race_among(ids, log_probs, keys)
        tokens: list[int] = np.where(log_probs.max(axis=1) > -np.inf, drawn, -1).tolist()
        return tokens


class DenseCandidates:
    """The whole vocabulary; a race reads only the blocks of logits that it needs."""

    def __init__(self, logits: Logits, rows: Ints, maxima: Logits) -> None:
        """Make one row of candidates for each of the indices `rows` of the logits, (any, vocabulary).

        `maxima`, (rows, blocks), are the largest logit of each `BLOCK` of their tokens.
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

    def draw(self, entries: Sequence[RaceEntry]) -> list[int]:
        rows, keys, *columns = _columns(entries)
        last = self._logits.shape[1] - 1

        def read(indices: Ints, blocks: Ints) -> Floats:
            ids = blocks[:, None] * BLOCK + np.arange(BLOCK)
            logits = self._logits[self._rows[rows[indices]][:, None], np.minimum(ids, last)]
            log_probs = log_probabilities(logits, *(column[indices] for column in columns))
            log_probs[ids > last] = -np.inf
            for row, index in enumerate(indices):
                log_probs[row] = _residual(log_probs[row], ids[row], entries[index].subtract)
            return log_probs

        tokens: list[int] = race(log_probabilities(self._maxima[rows], *columns), read, keys).tolist()
        return tokens


def _columns(entries: Sequence[RaceEntry]) -> tuple[Ints, Words, Floats, Floats, Floats]:
    """Return rows and keys of the entries, (entries,); floors, temperatures and totals, (entries, 1)."""
    return (
        np.array([entry.row for entry in entries]),
        np.array([entry.key for entry in entries], dtype=np.uint64),
        np.array([[entry.floor] for entry in entries]),
        np.array([[entry.temperature] for entry in entries]),
        np.array([[entry.total] for entry in entries]),
    )


def _residual(log_probs: Floats, ids: Ints, subtract: SparseDistribution | None) -> Floats:
    """Return the logarithm of (p - q)+ for a few tokens; of p if there is no q."""
    if subtract is None:
        return log_probs
    q = (ids[:, None] == np.array(subtract.ids)) @ np.array(subtract.probabilities)
    with np.errstate(divide="ignore"):
        return np.where(q > 0, np.log(np.maximum(np.exp(log_probs) - q, 0.0)), log_probs)
