"""Attention of a whole batch over paged KV memory: one write per layer, and few calls."""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fly.blocks import BLOCK_TOKENS
from services.engine.forward.attention_groups import Extent, group_sequences
from services.engine.forward.forward_batch import ForwardBatch
from services.engine.forward.group_attention import GroupAttention, GroupPlan, first_position
from services.engine.forward.kernel_attention import KernelAttention
from services.engine.forward.plan_buffer import IntArray
from services.engine.kernels.choice import AttentionKind, choose_paged_attention
from services.engine.memory.paged_kv_cache import PagedKvCache

_GROUP_BYTES = 1 << 28
"""A group of several sequences copies at most this much KV per layer."""


class BatchedAttention:
    """Attention of one forward over paged memory; builds once what the layers share.

    On a GPU a kernel attends for all, if one can be used. Otherwise sequences of similar length attend in one
    call, and layers with another window have a plan of their own.
    """

    def __init__(self, batch: ForwardBatch, kv_cache: PagedKvCache) -> None:
        self._batch = batch
        self._kv_cache = kv_cache
        self._tables = [kv_cache.block_table(rows.slot) for rows in batch.rows]
        positions = [np.arange(rows.start, rows.end) for rows in batch.rows]
        written = [
            table[own // BLOCK_TOKENS] * BLOCK_TOKENS + own % BLOCK_TOKENS
            for table, own in zip(self._tables, positions, strict=True)
        ]
        (self._written,) = batch.buffer.upload("written", [np.concatenate(written)])
        self._described: KernelAttention | None = None
        self._plans: dict[int | None, _Plan] = {}

    def __call__(
        self,
        layer: int,
        queries: Tensor,
        new: Tensor,
        scaling: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """As `Attention` in `services.engine.forward.attention`."""
        memory = self._kv_cache.layer(layer, new)
        if new.dtype is not memory.dtype:
            queries, new = queries.to(memory.dtype), new.to(memory.dtype)
        memory.index_copy_(0, self._written, new)
        heads, kv_heads, dim = queries.shape[1], *memory.shape[2:]
        kind = AttentionKind(heads, kv_heads, dim, window is not None, softcap, sinks is not None)
        kernel = choose_paged_attention(memory.device, memory.dtype, kind)
        if kernel is not None:
            self._batch.windows.add(window)
            self._described = self._described or KernelAttention(self._batch, self._tables)
            return self._described(kernel, queries, memory, scaling, window, softcap, sinks)
        if window not in self._plans:
            self._plans[window] = self._plan(window, math.prod(memory.shape[1:]) * memory.itemsize)
        groups, order = self._plans[window]
        parts = [group(queries, memory, scaling, softcap, sinks) for group in groups]
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        return attended if order is None else attended.index_select(0, order)

    def _plan(self, window: int | None, bytes_per_position: int) -> "_Plan":
        """Group the sequences, and upload what describes the groups."""
        rows = self._batch.rows
        self._batch.windows.add(window)
        extents = [Extent(each.num_rows, each.end - first_position(each, window)) for each in rows]
        plans = [
            GroupPlan([rows[index] for index in group], [self._tables[index] for index in group], window)
            for group in group_sequences(extents, _GROUP_BYTES // bytes_per_position)
        ]
        order, is_needed = _order([plan.flat_rows for plan in plans], self._batch.num_tokens)
        arrays = [order, *(array for plan in plans for array in plan.arrays)]
        uploaded = iter(self._batch.buffer.upload(("attention", window), arrays))
        first = next(uploaded)
        groups = [
            GroupAttention(plan, list(itertools.islice(uploaded, len(plan.arrays))), self._batch)
            for plan in plans
        ]
        return _Plan(groups, first if is_needed else None)


class _Plan(NamedTuple):
    """Groups, and the row of their joined outputs for each row of the batch; None if that is the same."""

    groups: list[GroupAttention]
    order: Tensor | None


def _order(flat_rows: Sequence[IntArray], num_tokens: int) -> tuple[IntArray, bool]:
    """Return the row of the groups' joined outputs for each row of the batch; False if nothing moves."""
    joined = np.concatenate([rows.ravel() for rows in flat_rows])
    numbers = np.arange(len(joined))
    order = np.zeros(num_tokens, dtype=np.int64)
    order[joined] = numbers
    return order, not np.array_equal(joined, numbers)
