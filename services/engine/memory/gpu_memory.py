"""KV memory on a GPU: created when the model is loaded, or refused with the size that would fit."""

from collections.abc import Callable
from typing import Any, Protocol

import torch

from flyserve.core.blocks import BLOCK_TOKENS
from flyserve.core.errors import ModelError
from services.engine.loading.architecture import mlp_width
from services.engine.memory.kv_cache import KvCache
from services.engine.memory.paged_kv_cache import PagedKvCache

_KV_SHARE = 0.85
"""Share for the KV memory of what the weights and the largest forward leave free. The rest is for the copies
that attention makes of single sequences, and for gaps between tensors."""
_LOGITS_BYTES = 12
"""Bytes of a logit in the head: in the model's type, in float32, and the exponentials."""


class GpuMemory(Protocol):
    """The memory of the current GPU; `torch.cuda` is one."""

    def empty_cache(self) -> None:
        """Return memory that no tensor uses to the GPU."""

    def mem_get_info(self) -> tuple[int, int]:
        """Return the free bytes, and all bytes."""


class CachedForward(Protocol):
    """A forward that computes over KV memory, which may be replaced."""

    kv_cache: KvCache


def create_kv_memory(
    forward: CachedForward,
    gpu: GpuMemory,
    room_bytes: int = 0,
    smallest: Callable[[int], int] | None = None,
) -> None:
    """Create the tensors of a forward's cache on a GPU, after its first run; do nothing on a CPU.

    Args:
        forward: Its cache is empty; it is replaced by one of as many positions as fit if these are measured.
        gpu: The GPU that it is on.
        room_bytes: Memory that a forward takes beside weights and cache.
        smallest: Given if the positions are measured: returns the smallest number of all ranks of the model.

    Raises:
        ModelError: The tensors do not fit beside a forward, or not even a block does.
    """
    if not isinstance(kv_cache := forward.kv_cache, PagedKvCache):
        return
    gpu.empty_cache()  # other processes may share the GPU
    free_bytes, _ = gpu.mem_get_info()
    fitting = fitting_tokens(free_bytes - room_bytes, kv_cache.bytes_per_token)
    found = (
        f"{free_bytes / 1e9:.2f} GB of the GPU are free beside the weights, of which a forward takes up to"
        f" {room_bytes / 1e9:.2f} GB"
    )
    larger = "use a smaller max_batch_tokens, more shards or a larger GPU"
    if smallest is not None:
        if (agreed := smallest(fitting)) < BLOCK_TOKENS:
            raise ModelError(
                f"kv_tokens is auto, and {agreed} fit, must be at least {BLOCK_TOKENS}: {found}: {larger}"
            )
        forward.kv_cache = kv_cache = kv_cache.like(agreed, kv_cache.max_sequences)
    elif (needed_bytes := kv_cache.kv_capacity * kv_cache.bytes_per_token) > free_bytes - room_bytes:
        remedy = f"use at most {fitting}" if fitting else larger
        raise ModelError(
            f"kv_tokens is {kv_cache.kv_capacity}, which takes {needed_bytes / 1e9:.2f} GB; {found}: {remedy}"
        )
    try:
        kv_cache.create_memory()
    except torch.OutOfMemoryError as error:  # another process took it, or the last gaps are too small
        raise ModelError(
            f"kv_tokens is {kv_cache.kv_capacity}, which the GPU rejected: {found}: keep other processes off"
            " this GPU, or use fewer"
        ) from error


def fitting_tokens(free_bytes: int, bytes_per_token: int) -> int:
    """Return the positions, in whole blocks, that leave enough memory for copies; 0 if none do."""
    return max(0, int(free_bytes * _KV_SHARE)) // (bytes_per_token * BLOCK_TOKENS) * BLOCK_TOKENS


def forward_bytes(model: Any, num_rows: int) -> int:
    """Estimate the memory that a forward of this many rows takes beside weights and KV memory.

    Counts the logits of all rows, and one layer: its rows before and after, the queries, and the MLP.
    """
    config = model.config.get_text_config()
    layer_bytes = (4 * config.hidden_size + 3 * mlp_width(config)) * model.dtype.itemsize
    return int(num_rows * (config.vocab_size * _LOGITS_BYTES + layer_bytes))
