"""A runner of GGUF files: libllama computes the logits, and its KV cells belong to our slots."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flyserve.core.messages import ModelInfo
from flyserve.core.request import SamplingParams
from services.engine.base import ForwardInput, KvSlot
from services.engine.division import divide
from services.engine.llamacpp.cells import Cells
from services.engine.llamacpp.library import Batch, load_library
from services.engine.memory.paged_kv_cache import BlockAllocator

_NO_ROOM = 1
"""Code of `llama_decode`: no cells are free, and nothing has changed."""


class LlamaCppRunner(BlockAllocator):
    """A `Runner` on a context of libllama, in which each slot is a sequence.

    The cells of a context are shared: a prefix that several sequences have is stored once. The allocator
    counts them in blocks, and copies none, since a sequence that overwrites a shared cell gets another one.

    Attributes:
        is_paired: No forward computes a row alone, nor makes a single output: another row is beside it.
    """

    def __init__(
        self, info: ModelInfo, context: int, cells: Cells, num_rows: int, embedding_rows: int, most_slots: int
    ) -> None:
        """Use a context for at most `num_rows` rows at once, with room for the capacity of `info`.

        `most_slots` is its number of sequences, cached ones included; the next one is of the paired rows.
        """
        super().__init__(info.kv_capacity, info.max_sequences, copy_block=lambda source, target: None)
        self.info = info
        self.is_paired = False
        self._library, self._context, self._cells = load_library(), context, cells
        self._embedding_rows, self._most_slots = embedding_rows, most_slots
        self._pair = ForwardInput(most_slots, 0, (0,), 1, SamplingParams(), 0, (0,))
        self._threads = 0
        self._num_rows, self._rows = num_rows, _Rows(num_rows + 1)

    def allocate(self, num_tokens: int) -> KvSlot | None:
        if not self._free_slots and len(self) >= self._most_slots:
            return None
        return super().allocate(num_tokens)

    def resize(self, slot: KvSlot, num_tokens: int, start: int | None = None) -> bool:
        if num_tokens == 0:
            self._cells.cut(slot, 0)
        return super().resize(slot, num_tokens, start)

    def copy_prefix(self, source: KvSlot, slot: KvSlot, num_tokens: int) -> bool:
        if not super().copy_prefix(source, slot, num_tokens):
            return False
        self._cells.copy(source, slot, num_tokens)
        return True

    def retire(self, slot: KvSlot, num_tokens: int) -> None:
        self._cells.cut(slot, num_tokens)
        super().retire(slot, num_tokens)

    def free(self, slot: KvSlot) -> None:
        self._cells.cut(slot, 0)
        super().free(slot)

    def logits(self, batch: Sequence[ForwardInput]) -> Tensor:
        self._follow_threads()
        parts = [*divide(batch, self._num_rows)]
        if len(parts) == 1:
            return self._computed(batch)
        return torch.cat([self._computed(part).clone() for part in parts])

    def _computed(self, batch: Sequence[ForwardInput]) -> Tensor:
        """Return the logits of at most `num_rows` rows."""
        num_outputs = sum(item.num_outputs for item in batch)
        if self.is_paired and 1 in (num_outputs, sum(len(item.tokens) for item in batch)):
            batch = (*batch, self._pair)
        for item in batch:
            self._cells.cut(item.slot, item.start)
        written = self._rows.fill(batch)
        self._cells.prepare(written.n_tokens, self.kv_used)
        code = self._library.llama_decode(self._context, written)
        for item in batch:
            self._cells.record(item.slot, item.start, item.end)
        if code:
            for item in batch:
                self._cells.cut(item.slot, item.start)
            raise _failure(code)
        if not num_outputs:
            return torch.empty(0, self._embedding_rows)
        address = self._library.llama_get_logits(self._context)
        size = num_outputs * self._embedding_rows
        found = np.ctypeslib.as_array((ctypes.c_float * size).from_address(address))
        return torch.from_numpy(found.reshape(num_outputs, self._embedding_rows))

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

    def fill(self, batch: Sequence[ForwardInput]) -> Batch:
        """Return the batch in libllama's form, valid until the next call."""
        row = 0
        for item in batch:
            end = row + len(item.tokens)
            self._tokens[row:end] = item.tokens
            self._positions[row:end] = np.arange(item.start, item.end)
            self._slots[row:end] = item.slot
            self._is_output[row:end] = 0
            self._is_output[end - item.num_outputs : end] = 1
            row = end
        return self._batch(row)

    def _batch(self, num_rows: int) -> Batch:
        arrays: dict[str, Any] = {
            "token": self._tokens,
            "pos": self._positions,
            "n_seq_id": self._ones,
            "seq_id": self._places,
            "logits": self._is_output,
        }
        return Batch(n_tokens=num_rows, **{name: array.ctypes.data for name, array in arrays.items()})
