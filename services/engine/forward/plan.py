"""The plan of one forward: every sequence's new rows in one flat batch, built once for all layers."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from services.engine.base import Slot, Work


class Rows(NamedTuple):
    """A sequence's rows: `num_rows` of them from position `start` on, from row `offset` of the batch on."""

    slot: Slot
    start: int
    num_rows: int
    offset: int

    @property
    def end(self) -> int:
        """Length of the sequence with them."""
        return self.start + self.num_rows


class Plan:
    """Where each row of a flat batch belongs.

    Attributes:
        rows: Per sequence.
        num_tokens: Rows in all.
        ids: Token ids, (num_tokens,).
        positions: Their positions, (num_tokens,).
        num_outputs: Rows that the head answers for.
        outputs: Which they are; None where they are all.
    """

    def __init__(self, batch: Sequence[Work], device: torch.device | None = None) -> None:
        self.rows: list[Rows] = []
        ids: list[int] = []
        positions: list[int] = []
        outputs: list[int] = []
        for work in batch:
            rows = Rows(work.slot, work.start, len(work.tokens), len(ids))
            self.rows.append(rows)
            ids.extend(work.tokens)
            positions.extend(range(rows.start, rows.end))
            outputs.extend(range(len(ids) - work.num_outputs, len(ids)))
        self.num_tokens = len(ids)
        self.ids = torch.tensor(ids, dtype=torch.long, device=device)
        self.positions = torch.tensor(positions, dtype=torch.long, device=device)
        self.num_outputs = len(outputs)
        is_partial = len(outputs) < len(ids)
        self.outputs = torch.tensor(outputs, dtype=torch.long, device=device) if is_partial else None
        self._masks: dict[int, list[Tensor | None]] = {}

    @property
    def windows(self) -> set[int | None]:
        """What the layers of a forward have asked masks for."""
        return {window or None for window in self._masks}

    def masks(self, window: int | None, dtype: torch.dtype) -> list[Tensor | None]:
        """Additive masks (num_rows, end) per sequence; None where rows see all, or just the causal part.

        Args:
            window: Positions that a row sees, itself included; None for all.
            dtype: Of the mask.
        """
        key = window or 0
        if key not in self._masks:
            self._masks[key] = [_mask(rows, window, dtype, self.ids.device) for rows in self.rows]
        return self._masks[key]


def _mask(rows: Rows, window: int | None, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    is_windowed = window is not None and rows.end > window
    if not is_windowed and (rows.num_rows == 1 or rows.start == 0):
        return None
    mask = torch.full((rows.num_rows, rows.end), float("-inf"), dtype=dtype, device=device).triu_(
        rows.start + 1
    )
    if is_windowed and window is not None:
        hidden = torch.ones_like(mask, dtype=torch.bool).tril_(rows.start - window)
        mask.masked_fill_(hidden, float("-inf"))
    return mask
