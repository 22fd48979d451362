"""KV memory on a GPU: created when the model is loaded, or refused with the size that would fit."""

from typing import Protocol

from fly.blocks import BLOCK_TOKENS
from fly.errors import ModelError
from services.engine.memory.paged_kv_cache import PagedKvCache

_KV_SHARE = 0.85
"""Share of the memory beside the weights that a refusal proposes; forwards need the rest."""


class GpuMemory(Protocol):
    """The memory of the current GPU; `torch.cuda` is one."""

    def empty_cache(self) -> None:
        """Return memory that no tensor uses to the GPU."""

    def mem_get_info(self) -> tuple[int, int]:
        """Return the free bytes, and all bytes."""


def create_kv_memory(kv_cache: PagedKvCache, gpu: GpuMemory) -> None:
    """Create the tensors of a cache, after the first forward of its model.

    Raises:
        ModelError: They are larger than the free memory.
    """
    gpu.empty_cache()  # other processes may share the GPU
    free_bytes, _ = gpu.mem_get_info()
    needed_bytes = kv_cache.kv_capacity * kv_cache.bytes_per_token
    if needed_bytes > free_bytes:
        fitting = fitting_tokens(free_bytes, kv_cache.bytes_per_token)
        raise ModelError(
            f"kv_tokens is {kv_cache.kv_capacity}, which takes {needed_bytes / 1e9:.2f} GB; beside the"
            f" weights {free_bytes / 1e9:.2f} GB of the GPU are free: use at most {fitting}"
        )
    kv_cache.create_memory()


def fitting_tokens(free_bytes: int, bytes_per_token: int) -> int:
    """Return the positions, in whole blocks, that leave enough memory for forwards."""
    return int(free_bytes * _KV_SHARE) // (bytes_per_token * BLOCK_TOKENS) * BLOCK_TOKENS
