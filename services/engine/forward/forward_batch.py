"""The batch of one forward: the new rows of all sequences as one flat batch, built once for all layers."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from services.engine.base import ForwardInput, KvSlot
from services.engine.forward.padding import NO_PADDING, Padding, causal_mask


class SequenceRows(NamedTuple):
    """A sequence's rows: `num_rows`, from position `start` on, at row `offset` of the flat batch."""

    slot: KvSlot
    start: int
    num_rows: int
    offset: int

    @property
    def end(self) -> int:
        """Length of the sequence including them."""
        return self.start + self.num_rows


class Cap(NamedTuple):
    """Changes of a layer's attention scores: a soft cap, and sinks."""

    softcap: float | None = None
    has_sinks: bool = False


NO_CAP = Cap()


class ForwardBatch:
    """Token ids, positions and outputs of a flat batch.

    Attributes:
        rows: Rows of each sequence.
        num_tokens: Rows in total.
        ids: Token ids, (num_tokens,).
        positions: Their positions, (num_tokens,).
        num_outputs: Number of rows that the head scores.
        outputs: Indices of these rows; None if they are all rows.
        windows: Attention windows that the layers of a forward have requested; None is all positions.
        caps: Caps of the scores that the layers of a forward have requested.
    """

    def __init__(
        self,
        batch: Sequence[ForwardInput],
        device: torch.device | None = None,
        uses_bias: bool | None = None,
    ) -> None:
        """Build the tensors of a batch on a device, by default the CPU.

        `uses_bias` describes causal attention after earlier positions by a bias without elements; by default
        on a GPU, where the fast kernels accept no mask.
        """
        self.rows: list[SequenceRows] = []
        ids: list[int] = []
        positions: list[int] = []
        outputs: list[int] = []
        for item in batch:
            rows = SequenceRows(slot=item.slot, start=item.start, num_rows=len(item.tokens), offset=len(ids))
            self.rows.append(rows)
            ids.extend(item.tokens)
            positions.extend(range(rows.start, rows.end))
            outputs.extend(range(len(ids) - item.num_outputs, len(ids)))
        self.num_tokens = len(ids)
        self.num_outputs = len(outputs)
        count, has_all = self.num_tokens, len(outputs) == len(ids)
        numbers = [*ids, *positions] if has_all else [*ids, *positions, *outputs]
        placed = torch.tensor(numbers, dtype=torch.long).to(device or "cpu")
        self.ids, self.positions = placed[:count], placed[count : 2 * count]
        self.outputs = None if has_all else placed[2 * count :]
        self.windows: set[int | None] = set()
        self.caps: set[Cap] = set()
        self._uses_bias = self.ids.is_cuda if uses_bias is None else uses_bias
        self._masks: dict[tuple[int, bool], list[Tensor | None]] = {}

    def masks(
        self,
        window: int | None,
        dtype: torch.dtype,
        is_dense: bool = False,
        padding: Padding = NO_PADDING,
    ) -> list[Tensor | None]:
        """Return an additive mask (num_rows, end) per sequence; None where no or a causal mask suffices.

        With a padding, every sequence has a mask, of the padded size.

        `window` is the number of positions that a row attends to, including itself; None for all. Unless
        masks must be dense, one may be torch's `CausalBias`, for `scaled_dot_product_attention` alone.
        """
        self.windows.add(window or None)
        key = window or 0, is_dense or not self._uses_bias
        if key not in self._masks:
            self._masks[key] = [self.mask(rows, window, dtype, is_dense, padding) for rows in self.rows]
        return self._masks[key]

    def mask(
        self,
        rows: SequenceRows,
        window: int | None,
        dtype: torch.dtype,
        is_dense: bool = False,
        padding: Padding = NO_PADDING,
    ) -> Tensor | None:
        """Return the mask of one sequence, as `masks`."""
        is_windowed = window is not None and rows.end > window
        if not padding.is_none:
            return self._dense_mask(rows, window if is_windowed else None, dtype, padding)
        if not is_windowed and (rows.num_rows == 1 or rows.start == 0):
            return None
        if not is_windowed and self._uses_bias and not is_dense:
            from torch.nn.attention.bias import causal_lower_right

            return causal_lower_right(rows.num_rows, rows.end)
        return self._dense_mask(rows, window if is_windowed else None, dtype, padding)

    def _dense_mask(
        self, rows: SequenceRows, window: int | None, dtype: torch.dtype, padding: Padding
    ) -> Tensor:
        like = torch.empty(0, dtype=dtype, device=self.ids.device)
        size = padding.padded_rows(rows.num_rows), padding.padded_keys(rows.end)
        mask = causal_mask(*size, rows.start, like)
        if window is not None:
            hidden = torch.ones_like(mask, dtype=torch.bool).tril_(rows.start - window)
            mask.masked_fill_(hidden, float("-inf"))
        return mask
