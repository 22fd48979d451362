"""Attention of one group of sequences over paged KV memory, in one call."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fly.blocks import BLOCK_TOKENS
from services.engine.forward.attend import attend, attend_eager
from services.engine.forward.forward_batch import ForwardBatch, SequenceRows
from services.engine.forward.plan_buffer import IntArray
from services.engine.memory.paged_kv_cache import BlockTable


class GroupPlan:
    """A group as the host describes it: the rows of its sequences, and where their positions lie.

    Attributes:
        members: The rows of each sequence.
        num_rows: Most new rows of a sequence; in the others, the last row stands for those that they lack.
        length: Most positions that a sequence reads.
        has_equal_lengths: Every sequence reads as many.
        window: Positions that a row attends to; None if all sequences are shorter.
        flat_rows: The rows of the flat batch, (sequences, rows).
        arrays: For the device: first rows of the blocks, numbers of positions, starts, and `flat_rows`.
    """

    def __init__(
        self, members: Sequence[SequenceRows], tables: Sequence[BlockTable], window: int | None
    ) -> None:
        """Describe sequences by their block tables; with a window, only the blocks that it reaches."""
        self.members = members
        self.window = None if window is None or max(rows.end for rows in members) <= window else window
        firsts = np.array([first_position(rows, window) for rows in members])
        starts = np.array([rows.start for rows in members]) - firsts
        counts = np.array([rows.num_rows for rows in members])
        lengths = starts + counts
        self.num_rows, self.length = int(counts.max()), int(lengths.max())
        self.has_equal_lengths = bool((lengths == self.length).all())
        blocks = np.zeros((len(members), -(-self.length // BLOCK_TOKENS)), dtype=np.int64)
        for own, table, first, rows in zip(blocks, tables, firsts // BLOCK_TOKENS, members, strict=True):
            read = table[first : -(-rows.end // BLOCK_TOKENS)]
            own[: len(read)] = read * BLOCK_TOKENS
        offsets = np.array([rows.offset for rows in members])[:, None]
        self.flat_rows: IntArray = offsets + np.minimum(np.arange(self.num_rows), counts[:, None] - 1)
        self.arrays = [blocks, lengths, starts, self.flat_rows]

    @property
    def span(self) -> slice | None:
        """The group's rows of the flat batch, if they follow each other there without padding."""
        flat_rows = self.flat_rows.ravel()
        first = int(flat_rows[0])
        is_adjacent = np.array_equal(flat_rows, np.arange(first, first + len(flat_rows)))
        return slice(first, first + len(flat_rows)) if is_adjacent else None


def first_position(rows: SequenceRows, window: int | None) -> int:
    """Return the first position of the first block that a sequence's new rows attend to."""
    reached = 0 if window is None else max(0, rows.start - window + 1)
    return reached // BLOCK_TOKENS * BLOCK_TOKENS


class GroupAttention:
    """Computes a group's attention in every layer of a forward, from tensors that it builds once."""

    def __init__(self, plan: GroupPlan, uploaded: Sequence[Tensor], batch: ForwardBatch) -> None:
        """Build what all layers share from a plan's arrays, which are on the device."""
        blocks, self._lengths, self._starts, flat_rows = uploaded
        self._plan, self._batch = plan, batch
        self._count = len(plan.members)
        self._span, self._flat_rows = plan.span, flat_rows.flatten()
        # Kernels for masks want rows of a multiple of 8 elements, so several sequences read whole blocks.
        self._num_positions = blocks.shape[1] * BLOCK_TOKENS if self._count > 1 else plan.length
        self._positions = torch.arange(self._num_positions, device=blocks.device)
        in_block = torch.arange(BLOCK_TOKENS, device=blocks.device)
        kv_rows = (blocks[:, :, None] + in_block).flatten(1)[:, : self._num_positions]
        if self._count > 1:
            # A masked position still contributes 0 * value: read the sequence's own, not what others left.
            kv_rows = kv_rows.where(self._positions < self._lengths[:, None], kv_rows[:, :1])
        self._kv_rows = kv_rows.flatten()
        self._masks: dict[tuple[torch.dtype, int], Tensor | None] = {}

    def __call__(
        self,
        queries: Tensor,
        memory: Tensor,
        scaling: float | None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend with a layer's queries, (rows of the batch, heads, dim), over its KV memory.

        Returns:
            (sequences * rows, heads, dim): the rows of each sequence, with padding.
        """
        heads, dim = queries.shape[1:]
        if self._span is None:
            queries = queries.index_select(0, self._flat_rows)
        elif len(queries) > len(self._flat_rows):
            queries = queries[self._span]
        keys, values = self._read(memory)
        if softcap is not None or sinks is not None:
            own = queries.view(self._count, -1, heads, dim).transpose(1, 2)
            attended = attend_eager(own, keys, values, self._mask(own.dtype, 1), scaling, softcap, sinks)
        elif self._count == 1 and self._plan.num_rows > 1:
            mask = self._single_mask(queries.dtype)
            attended = attend(queries.transpose(0, 1)[None], keys, values, mask, scaling)
        else:
            return self._attend_folded(queries, keys, values, scaling)
        return attended.transpose(1, 2).reshape(-1, heads, dim)

    def _read(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Copy keys and values from a layer's memory, (sequences, KV heads, positions, dim)."""
        _, _, kv_heads, dim = memory.shape
        read = memory.index_select(0, self._kv_rows)
        size, position = (self._count, kv_heads, self._num_positions, dim), 2 * kv_heads * dim
        stride = (self._num_positions * position, dim, position, 1)
        return read.as_strided(size, stride), read.as_strided(size, stride, kv_heads * dim)

    def _attend_folded(self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float | None) -> Tensor:
        """Attend with the queries of a KV head as its rows: kernels for masks do not share KV heads."""
        count, num_rows, (_, heads, dim) = self._count, self._plan.num_rows, queries.shape
        kv_heads = keys.shape[1]
        group = heads // kv_heads
        row, head, _ = queries.stride()
        folded = queries.as_strided(
            (count, kv_heads, group, num_rows, dim), (num_rows * row, group * head, head, row, 1)
        )
        attended = F.scaled_dot_product_attention(
            folded.reshape(count, kv_heads, group * num_rows, dim),
            keys,
            values,
            attn_mask=self._mask(queries.dtype, group),
            scale=scaling,
        )
        if num_rows > 1:
            attended = attended.view(count, kv_heads, group, num_rows, dim).permute(0, 3, 1, 2, 4)
        return attended.reshape(-1, heads, dim)

    def _single_mask(self, dtype: torch.dtype) -> Tensor | None:
        """Return the mask of the only sequence: none, or a bias without elements, where that suffices."""
        if self._plan.window is not None:
            return self._mask(dtype, 1)
        return self._batch.mask(self._plan.members[0], None, dtype)

    def _mask(self, dtype: torch.dtype, group: int) -> Tensor | None:
        """Return an additive mask, (sequences, 1, group * rows, positions); None if every row sees all."""
        key = dtype, group
        if key not in self._masks:
            plan = self._plan
            sees_all = plan.num_rows == 1 and plan.window is None and self._num_positions == plan.length
            is_needed = not (sees_all and plan.has_equal_lengths)
            self._masks[key] = self._make_mask(dtype).repeat(1, 1, group, 1) if is_needed else None
        return self._masks[key]

    def _make_mask(self, dtype: torch.dtype) -> Tensor:
        rows = self._starts[:, None] + torch.arange(self._plan.num_rows, device=self._starts.device)
        rows = torch.minimum(rows, self._lengths[:, None] - 1)
        distance = rows[:, :, None] - self._positions
        is_hidden = distance < 0
        if self._plan.window is not None:
            is_hidden |= distance >= self._plan.window
        mask = torch.zeros(is_hidden.shape, dtype=dtype, device=rows.device)
        return mask.masked_fill_(is_hidden, float("-inf"))[:, None]
