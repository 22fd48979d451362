"""The cells of a context's KV memory: which positions each sequence has, and in which order they lie."""

from collections import defaultdict
from typing import Any

import numpy as np

from services.engine.base import KvSlot, RunnerLost

_ALL, _TO_END = -1, -1


class Cells:
    """Cells in the order that libllama chooses: the first free ones."""

    def __init__(self, library: Any, context: int, last: KvSlot, num_spare: int) -> None:
        """Use a context.

        It has `num_spare` cells more than there are positions to reserve, and `last` is its last sequence:
        slots have the first ones, and subclasses use those from the last one on.
        """
        self._library, self._context = library, context
        self._last, self._num_spare = last, num_spare
        self._num_written = 0
        self._memory = library.llama_get_memory(context)
        self._lengths: defaultdict[KvSlot, int] = defaultdict(int)

    def cut(self, slot: KvSlot, length: int) -> None:
        """Remove the positions of a sequence from `length` on."""
        if self._lengths[slot] > length:
            self._remove(slot, length)
            self._lengths[slot] = length

    def copy(self, source: KvSlot, slot: KvSlot, length: int) -> None:
        """Give a sequence the first positions of another one instead of its own."""
        self.cut(slot, 0)
        self._share(source, slot, 0, length)
        self._lengths[slot] = length

    def prepare(self, num_rows: int, num_used: int) -> None:
        """Prepare for new rows; `num_used` positions are reserved, theirs included."""

    def record(self, slot: KvSlot, start: int, end: int) -> None:
        """Record that the positions of a sequence from `start` to `end` are written."""
        self._lengths[slot] = end

    def _share(self, source: KvSlot, slot: KvSlot, start: int, end: int) -> None:
        self._library.llama_memory_seq_cp(self._memory, source, slot, start, end)

    def _remove(self, slot: KvSlot, start: int) -> None:
        if not self._library.llama_memory_seq_rm(self._memory, slot, start, _TO_END):
            raise RunnerLost(f"libllama cannot roll back to position {start}")


class TwinCells(Cells):
    """Cells of a model whose attention has a window: each slot has a twin, a sequence with the same cells.

    libllama gives a cell away if one sequence alone has it and its window has passed it, and then removes all
    earlier positions of that sequence. Shared prefixes and roll-backs still need them, and a cell that two
    sequences have is kept.

    NOTE: A new cell is the twin's only after its forward, so the library must compute all rows at once.
    """

    def copy(self, source: KvSlot, slot: KvSlot, length: int) -> None:
        super().copy(source, slot, length)
        self._share(slot, self._twin(slot), 0, length)

    def record(self, slot: KvSlot, start: int, end: int) -> None:
        super().record(slot, start, end)
        self._share(slot, self._twin(slot), start, end)

    def _remove(self, slot: KvSlot, start: int) -> None:
        super()._remove(slot, start)
        super()._remove(self._twin(slot), start)

    def _twin(self, slot: KvSlot) -> KvSlot:
        return self._last - slot


class OrderedCells(Cells):
    """Cells in which each sequence lies in the order of its positions, the order in which attention adds.

    The last sequence, the holder, has every written cell, so that none becomes free when a slot leaves it.
    A row therefore always gets the cell after all others. Cells that the holder alone has are dropped when
    they exceed `num_spare`: the state of the context is saved and restored, which moves the other cells
    together and keeps their order.
    """

    def prepare(self, num_rows: int, num_used: int) -> None:
        """As `Cells`: drop the removed cells if they are too many."""
        self._num_written += num_rows
        if self._num_written > num_used + self._num_spare:
            self._compact()
            self._num_written = num_used + 1  # or fewer; one is a row's that has nothing reserved

    def record(self, slot: KvSlot, start: int, end: int) -> None:
        super().record(slot, start, end)
        self._share(slot, self._last, start, end)

    def _compact(self) -> None:
        """Drop the cells that the holder alone has.

        NOTE: the search for free cells then starts at the first one. Where an attention has a window, it may
        take a cell that one sequence alone has, and which is outside its window. So the holder has all again.
        """
        self._library.llama_memory_seq_rm(self._memory, self._last, 0, _TO_END)
        state = np.empty(self._library.llama_state_seq_get_size(self._context, _ALL), np.uint8)
        place = state.ctypes.data, len(state), _ALL
        saved = self._library.llama_state_seq_get_data(self._context, *place)
        if not saved or not self._library.llama_state_seq_set_data(self._context, *place):
            raise RunnerLost("libllama cannot save and restore its KV memory")
        for slot, length in self._lengths.items():
            if length:
                self._share(slot, self._last, 0, length)
