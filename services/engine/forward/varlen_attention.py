"""Attention of all sequences of a batch in one call, over memory in blocks on a GPU."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from services.engine.forward.attention import Attention, SequentialAttention
from services.engine.forward.forward_batch import NO_CAP, ForwardBatch, SequenceRows
from services.engine.memory.kv_cache import KvCache
from services.engine.memory.paged_kv_cache import PagedKvCache

_KEYS = 65_536
"""Keys that one call copies from the blocks of its sequences; more are attended to in several calls."""
_MAX_DIM = 256
"""Largest head of torch's kernel."""


def make_attention(batch: ForwardBatch, kv_cache: KvCache) -> Attention:
    """Return the attention of a forward over this kind of memory."""
    if isinstance(kv_cache, PagedKvCache) and batch.ids.is_cuda:
        return VarlenAttention(batch, kv_cache)
    return SequentialAttention(batch, kv_cache)


class KeyGroup(NamedTuple):
    """Sequences of one call.

    Attributes:
        span: Their rows of the flat batch.
        keys: Rows of memory with their positions, (keys,).
        query_ends: 0, and the end of each sequence's rows in `span`, (sequences + 1,).
        key_ends: 0, and the end of each sequence's positions in `keys`, (sequences + 1,).
        most_rows: Most rows of a sequence.
        most_keys: Most positions of a sequence.
    """

    span: slice
    keys: Tensor
    query_ends: Tensor
    key_ends: Tensor
    most_rows: int
    most_keys: int


class PackedBatch(NamedTuple):
    """The sequences of a batch as the kernel takes them.

    Attributes:
        written: Rows of memory of the batch's new keys and values, (rows,).
        groups: Consecutive sequences, of which each call takes some.
    """

    written: Tensor
    groups: Sequence[KeyGroup]


def pack_batch(batch: ForwardBatch, kv_cache: PagedKvCache) -> PackedBatch:
    """Look up where a batch writes and reads."""
    device = batch.ids.device
    held = {rows.slot: kv_cache.positions(rows.slot, device)[: rows.end] for rows in batch.rows}
    groups = [_group(rows, torch.cat([held[each.slot] for each in rows])) for rows in _split(batch.rows)]
    return PackedBatch(torch.cat([held[rows.slot][rows.start :] for rows in batch.rows]), groups)


class VarlenAttention:
    """An `Attention` by torch's kernel for sequences of any lengths.

    The kernel takes the keys of a row in one order, with any rows beside it. It knows types of two bytes, and
    no capped scores or sinks; these are computed one sequence after another.
    """

    def __init__(
        self,
        batch: ForwardBatch,
        kv_cache: PagedKvCache,
        attend: Callable[..., Tensor | tuple[Tensor, Tensor]] | None = None,
        packed: PackedBatch | None = None,
    ) -> None:
        """Prepare a forward.

        `attend` stands for torch's `varlen_attn`; `packed` is the batch if it is packed already.
        """
        # NOTE: the module imports torch's compiler, which a process without a GPU need not load.
        if attend is None:
            from torch.nn.attention.varlen import varlen_attn

            attend = varlen_attn
        self._batch = batch
        self._kv_cache = kv_cache
        self._attend = attend
        self._sequential = SequentialAttention(batch, kv_cache)
        self._written, self._groups = packed or pack_batch(batch, kv_cache)

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
        """As `Attention`."""
        if softcap is not None or sinks is not None or not fits_kernel(queries.dtype, queries.shape[2]):
            return self._sequential(layer, queries, new, scaling, window, softcap, sinks)
        self._batch.windows.add(window or None)
        self._batch.caps.add(NO_CAP)
        memory = self._kv_cache.layer(layer, new)
        memory.index_copy_(0, self._written, new.to(memory.dtype))
        parts = [self._attended(group, memory, queries, scaling, window) for group in self._groups]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attended(
        self, group: KeyGroup, memory: Tensor, queries: Tensor, scaling: float | None, window: int | None
    ) -> Tensor:
        keys, values = memory.index_select(0, group.keys).unbind(1)
        found = self._attend(
            queries[group.span],
            keys,
            values,
            group.query_ends,
            group.key_ends,
            # NOTE: for one row of each sequence the kernel would sum parts of the keys in another order.
            max(2, group.most_rows),
            group.most_keys,
            scale=scaling,
            window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=queries.shape[1] != keys.shape[1],
            num_splits=1,
        )
        assert isinstance(found, Tensor), "no further result is asked for"
        return found


def fits_kernel(dtype: torch.dtype, dim: int) -> bool:
    """Check that torch's kernel knows this type and size of heads."""
    return dtype.itemsize == 2 and dim <= _MAX_DIM and dim % 8 == 0


def _split(rows: Sequence[SequenceRows]) -> Iterator[Sequence[SequenceRows]]:
    """Yield consecutive sequences whose keys one call copies; a longer sequence is alone."""
    first = count = 0
    for index, each in enumerate(rows):
        if index > first and count + each.end > _KEYS:
            yield rows[first:index]
            first, count = index, 0
        count += each.end
    yield rows[first:]


def _group(rows: Sequence[SequenceRows], keys: Tensor) -> KeyGroup:
    numbers = [each.num_rows for each in rows], [each.end for each in rows]
    ends = [[0, *accumulate(each)] for each in numbers]
    query_ends, key_ends = torch.tensor(ends, dtype=torch.int32).to(keys.device)
    span = slice(rows[0].offset, rows[-1].offset + rows[-1].num_rows)
    return KeyGroup(span, keys, query_ends, key_ends, *map(max, numbers))
