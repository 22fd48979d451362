"""Write to KV memory of any kind and read a sequence back, as a layer's attention does."""

from collections.abc import Sequence

import torch
from torch import Tensor

from services.engine.base import KvSlot
from services.engine.memory.kv_cache import KvCache


def store(
    kv_cache: KvCache, layer: int, slot: KvSlot, start: int, keys: Sequence[float], added: float
) -> tuple[Tensor, Tensor]:
    """Write keys of one element, and values that are larger by `added`; return those of the whole slot."""
    new_keys = torch.tensor(keys, dtype=torch.float32)
    new = torch.stack((new_keys, new_keys + added), 1)[:, :, None, None]
    held_keys, held_values = kv_cache.store(layer, slot, start, new)
    return held_keys.flatten(), held_values.flatten()
