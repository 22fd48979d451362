"""Blocks of KV memory: the numbers of the allocator, and those of vLLM for each group of layers."""

from collections.abc import Sequence
from typing import Any

from services.engine.base import KvSlot
from services.engine.memory.paged_kv_cache import Block
from services.engine.vllm.steps import Layout

_NO_STATE_TOKENS = 16
"""Positions of a block of a model that keeps no keys and values."""
_RECURRENT = "its recurrent layers keep one state per sequence, which cannot be rolled back"
_ONE_ROW = "its attention continues a sequence by one row only on this device"


class Blocks:
    """The blocks of one worker.

    vLLM's groups of layers (of several attention windows) share one memory, so a block of the allocator is
    one of vLLM's for each group. A recurrent layer has one block for each sequence, its state: these come
    first. vLLM's block 0 takes the writes of padded rows.
    """

    def __init__(self, kv: Any, config: Any) -> None:
        """Divide the memory of vLLM's `KVCacheConfig`."""
        from vllm.v1.kv_cache_interface import MambaSpec

        specs = [group.kv_cache_spec for group in kv.kv_cache_groups]
        self._are_states = [isinstance(spec, MambaSpec) for spec in specs]
        self._num_states = sum(self._are_states)
        self._num_paged = len(specs) - self._num_states
        self._first = 1 + self._num_states * config.scheduler_config.max_num_seqs
        sizes = {spec.block_size for spec in specs if not isinstance(spec, MambaSpec)} or {_NO_STATE_TOKENS}
        (self._block_tokens,) = sizes
        self._num_free = kv.num_blocks - self._first
        self._unpaged_blocks = config.scheduler_config.max_num_seqs * -(
            -config.model_config.max_model_len // self._block_tokens
        )
        self._continues = config.scheduler_config.enable_chunked_prefill
        self._must_zero = bool(getattr(kv, "needs_kv_cache_zeroing", False))

    def layout(self) -> Layout:
        """Return the layout; it has no block if there is not even memory for the states."""
        num_blocks = self._num_free // self._num_paged if self._num_paged else self._unpaged_blocks
        reason = _RECURRENT if self._num_states else "" if self._continues else _ONE_ROW
        return Layout(num_blocks if self._num_free > 0 else 0, self._block_tokens, reason)

    def all_of(self, slot: KvSlot, table: Sequence[Block]) -> tuple[list[int], ...]:
        """Return vLLM's blocks of a sequence, for each group."""
        states = iter(range(1 + slot * self._num_states, 1 + (slot + 1) * self._num_states))
        paged = iter(self._paged(table))
        return tuple([next(states)] if is_state else next(paged) for is_state in self._are_states)

    def more(self, table: Sequence[Block]) -> tuple[list[int], ...]:
        """Return the same of further blocks of a sequence."""
        paged = iter(self._paged(table))
        return tuple([] if is_state else next(paged) for is_state in self._are_states)

    def numbers(self, block: Block) -> range:
        """Return the numbers of a block, for each group with blocks."""
        return range(self._first + block * self._num_paged, self._first + (block + 1) * self._num_paged)

    def fresh(self, table: Sequence[Block]) -> list[int]:
        """Return the blocks to zero before their first use: beside a state, memory may hold anything."""
        if not self._must_zero:
            return []
        return [number for block in table for number in self.numbers(block)]

    def _paged(self, table: Sequence[Block]) -> list[list[int]]:
        numbers = [self.numbers(block) for block in table]
        return [[each[group] for each in numbers] for group in range(self._num_paged)]
