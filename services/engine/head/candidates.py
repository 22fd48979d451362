"""Candidate tokens of several rows: the interface, and the candidates of a simulated model, which are few."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flyserve.core.limits import MOST_PROPOSED
from flyserve.core.noise import Floats, Ints, Words, race_among
from flyserve.core.request import SamplingParams
from flyserve.core.types import SparseDistribution
from services.engine.head.filters import Logits, log_total, lowest_kept


class Candidates(Protocol):
    """The tokens that each row may draw, after the filters, with their probabilities p."""

    def accepts(self, rows: Ints, tokens: Ints, thresholds: Floats) -> NDArray[np.bool_]:
        """Check for one token in each of some rows that its p is above a threshold."""

    def excludes(self, rows: Ints, tokens: Ints) -> NDArray[np.bool_]:
        """Check for one token in each of some rows whether processors or filters exclude it."""

    def leading(self, rows: Ints) -> tuple[Ints, Floats]:
        """Return the `MOST_PROPOSED` most likely tokens of some rows, in no order.

        Ids and logits are (rows, tokens); the logit of a token that must not be drawn is -inf.
        """

    def draw(self, rows: Ints, keys: Words, subtract: Sequence[SparseDistribution | None]) -> Ints:
        """Return a token id for each of some rows; -1 where no token has a probability above 0.

        Where a distribution q is given, the token is drawn from (p - q)+ instead of p.
        """


class FewCandidates:
    """A few tokens per row, with their ids."""

    def __init__(self, ids: Ints, logits: Logits, sampling: Sequence[SamplingParams]) -> None:
        """Take ids and logits, both (rows, tokens), and the parameters of each row."""
        self._ids = ids
        floors = [lowest_kept(row, each) for row, each in zip(logits, sampling, strict=True)]
        temperatures = np.array([[each.temperature] for each in sampling])
        totals = [
            log_total(row, floor, each.temperature)
            for row, floor, each in zip(logits, floors, sampling, strict=True)
        ]
        is_kept = logits >= np.array(floors)[:, None]
        self._logits = np.where(is_kept, logits.astype(np.float64), -np.inf)
        self._log_p = self._logits / temperatures - np.array(totals)[:, None]

    def accepts(self, rows: Ints, tokens: Ints, thresholds: Floats) -> NDArray[np.bool_]:
        is_accepted: NDArray[np.bool_] = np.exp(self._of(rows, tokens)) > thresholds
        return is_accepted

    def excludes(self, rows: Ints, tokens: Ints) -> NDArray[np.bool_]:
        is_excluded: NDArray[np.bool_] = self._of(rows, tokens) == -np.inf
        return is_excluded

    def leading(self, rows: Ints) -> tuple[Ints, Floats]:
        order = np.argsort(-self._logits[rows], axis=1, kind="stable")[:, :MOST_PROPOSED]
        logits: Floats = np.take_along_axis(self._logits[rows], order, axis=1)
        return np.take_along_axis(self._ids[rows], order, axis=1), logits

    def draw(self, rows: Ints, keys: Words, subtract: Sequence[SparseDistribution | None]) -> Ints:
        ids, log_p = self._ids[rows], self._log_p[rows]
        for index, q in enumerate(subtract):
            if q is not None:
                log_p[index] = _residual(log_p[index], ids[index], q)
        drawn: Ints = np.where(log_p.max(axis=1) > -np.inf, race_among(ids, log_p, keys), -1)
        return drawn

    def _of(self, rows: Ints, tokens: Ints) -> Floats:
        """Return log p of one token for each of some rows."""
        log_p: Floats = np.where(self._ids[rows] == tokens[:, None], self._log_p[rows], -np.inf).max(axis=1)
        return log_p


def _residual(log_p: Floats, ids: Ints, subtracted: SparseDistribution) -> Floats:
    """Return the logarithm of (p - q)+ for a few tokens."""
    q = (ids[:, None] == np.array(subtracted.ids)) @ np.array(subtracted.probabilities)
    with np.errstate(divide="ignore"):
        return np.where(q > 0, np.log(np.maximum(np.exp(log_p) - q, 0.0)), log_p)
