"""A runner of GGUF files: libllama computes the logits, and its KV cells belong to our slots."""

import ctypes
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flyserve.core.messages import ModelInfo
from services.engine.base import ForwardInput, KvSlot, RunnerLost
from services.engine.llamacpp.library import Batch, load_library
from services.engine.memory.paged_kv_cache import BlockAllocator

_TO_END = -1
_NO_ROOM = 1
"""Code of `llama_decode`: no cells are free, and nothing has changed."""


class LlamaCppRunner(BlockAllocator):
    """A `Runner` on a context of libllama, in which each slot is a sequence.

    The cells of a context are shared: a prefix that several sequences have is stored once. The allocator
    counts them in blocks, and copies none, since a sequence that overwrites a shared cell gets another one.
    """

    def __init__(
        self, info: ModelInfo, context: int, num_rows: int, embedding_rows: int, most_slots: int
    ) -> None:
        """Use a context for at most `num_rows` rows per forward, with room for the capacity of `info`.

        `most_slots` is its number of sequences, cached ones included.
        """
        super().__init__(info.kv_capacity, info.max_sequences, copy_block=lambda source, target: None)
        self.info = info
        self._library, self._context = load_library(), context
        self._memory = self._library.llama_get_memory(context)
        self._embedding_rows, self._most_slots = embedding_rows, most_slots
        self._threads = 0
        self._lengths: defaultdict[KvSlot, int] = defaultdict(int)
        self._rows = _Rows(num_rows)

    def allocate(self, num_tokens: int) -> KvSlot | None:
        if not self._free_slots and len(self) >= self._most_slots:
            return None
        return super().allocate(num_tokens)

    def resize(self, slot: KvSlot, num_tokens: int, start: int | None = None) -> bool:
        if num_tokens == 0:
            self._cut(slot, 0)
        return super().resize(slot, num_tokens, start)

    def copy_prefix(self, source: KvSlot, slot: KvSlot, num_tokens: int) -> bool:
        if not super().copy_prefix(source, slot, num_tokens):
            return False
        self._cut(slot, 0)
        self._library.llama_memory_seq_cp(self._memory, source, slot, 0, num_tokens)
        self._lengths[slot] = num_tokens
        return True

    def retire(self, slot: KvSlot, num_tokens: int) -> None:
        self._cut(slot, num_tokens)
        super().retire(slot, num_tokens)

    def free(self, slot: KvSlot) -> None:
        self._cut(slot, 0)
        super().free(slot)

    def logits(self, batch: Sequence[ForwardInput]) -> Tensor:
        self._follow_threads()
        for item in batch:
            self._cut(item.slot, item.start)
        written, num_outputs = self._rows.fill(batch)
        code = self._library.llama_decode(self._context, written)
        for item in batch:
            self._lengths[item.slot] = item.end
        if code:
            for item in batch:
                self._cut(item.slot, item.start)
            raise _failure(code)
        if not num_outputs:
            return torch.empty(0, self._embedding_rows)
        address = self._library.llama_get_logits(self._context)
        size = num_outputs * self._embedding_rows
        found = np.ctypeslib.as_array((ctypes.c_float * size).from_address(address))
        return torch.from_numpy(found.reshape(num_outputs, self._embedding_rows))

    def _cut(self, slot: KvSlot, length: int) -> None:
        """Remove the positions of a slot from `length` on."""
        if self._lengths[slot] <= length:
            return
        if not self._library.llama_memory_seq_rm(self._memory, slot, length, _TO_END):
            raise RunnerLost(f"libllama cannot roll back {self.info.architecture} to position {length}")
        self._lengths[slot] = length

    def _follow_threads(self) -> None:
        """Compute with as many threads as torch does on this thread."""
        if (threads := torch.get_num_threads()) != self._threads:
            self._library.llama_set_n_threads(self._context, threads, threads)
            self._threads = threads


def _failure(code: int) -> RuntimeError:
    if code == _NO_ROOM:
        return RuntimeError("libllama has no free KV cells")
    return RuntimeError(f"libllama failed with code {code}")


class _Rows:
    """The memory in which libllama is given the rows of a batch."""

    def __init__(self, num_rows: int) -> None:
        self._tokens, self._positions, self._slots = np.zeros((3, num_rows), np.int32)
        self._is_output = np.zeros(num_rows, np.int8)
        self._ones = np.ones(num_rows, np.int32)
        self._places = self._slots.ctypes.data + np.arange(num_rows, dtype=np.uintp) * self._slots.itemsize

    def fill(self, batch: Sequence[ForwardInput]) -> tuple[Batch, int]:
        """Return the batch in libllama's form, valid until the next call, and its number of outputs."""
        row, num_outputs = 0, 0
        for item in batch:
            end = row + len(item.tokens)
            self._tokens[row:end] = item.tokens
            self._positions[row:end] = np.arange(item.start, item.end)
            self._slots[row:end] = item.slot
            self._is_output[row:end] = 0
            self._is_output[end - item.num_outputs : end] = 1
            row, num_outputs = end, num_outputs + item.num_outputs
        return self._batch(row), num_outputs

    def _batch(self, num_rows: int) -> Batch:
        arrays: dict[str, Any] = {
            "token": self._tokens,
            "pos": self._positions,
            "n_seq_id": self._ones,
            "seq_id": self._places,
            "logits": self._is_output,
        }
        return Batch(n_tokens=num_rows, **{name: array.ctypes.data for name, array in arrays.items()})
