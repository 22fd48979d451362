"""How large a KV memory is and how full, told by whoever stands before the one that counts."""

from typing import Protocol


class Figures(Protocol):
    """What is counted; the properties of `Memory`."""

    @property
    def max_sequences(self) -> int: ...

    @property
    def kv_capacity(self) -> int: ...

    @property
    def kv_used(self) -> int: ...

    @property
    def kv_cached(self) -> int: ...


class MemoryFigures:
    """Base of a `Memory` whose figures another object keeps: a ledger, an arena, a runner."""

    def __init__(self, keeper: Figures) -> None:
        self._keeper = keeper

    @property
    def max_sequences(self) -> int:
        return self._keeper.max_sequences

    @property
    def kv_capacity(self) -> int:
        return self._keeper.kv_capacity

    @property
    def kv_used(self) -> int:
        return self._keeper.kv_used

    @property
    def kv_cached(self) -> int:
        return self._keeper.kv_cached
