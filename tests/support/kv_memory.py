"""Write to KV memory of any kind and read a sequence back, as a layer's attention does."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fly.blocks import BLOCK_TOKENS
from services.engine.base import KvSlot
from services.engine.memory.kv_cache import ContiguousKvCache, KvCache
from services.engine.memory.paged_kv_cache import PagedKvCache


def store(
    kv_cache: KvCache, layer: int, slot: KvSlot, start: int, keys: Sequence[float], added: float
) -> tuple[Tensor, Tensor]:
    """Write keys of one element, and values that are larger by `added`; return those of the whole slot."""
    new_keys = torch.tensor(keys, dtype=torch.float32)
    new = torch.stack((new_keys, new_keys + added), 1)[:, :, None, None]
    if isinstance(kv_cache, ContiguousKvCache):
        held_keys, held_values = kv_cache.store(layer, slot, start, new)
        return held_keys.flatten(), held_values.flatten()
    assert isinstance(kv_cache, PagedKvCache)
    rows = memory_rows(kv_cache, slot)[: start + len(keys)]
    memory = kv_cache.layer(layer, new)
    memory.index_copy_(0, rows[start:], new)
    held = memory.index_select(0, rows)
    return held[:, 0].flatten(), held[:, 1].flatten()


def memory_rows(kv_cache: PagedKvCache, slot: KvSlot) -> Tensor:
    """Return the rows of a layer's memory that hold the slot's positions, in order."""
    blocks = torch.from_numpy(kv_cache.block_table(slot))
    return (blocks[:, None] * BLOCK_TOKENS + torch.arange(BLOCK_TOKENS)).flatten()
