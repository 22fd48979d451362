"""Size and usage of a KV memory."""

from typing import Protocol


class MemoryStats(Protocol):
    """Size and usage of a KV memory: the properties of `KvAllocator`."""

    @property
    def max_sequences(self) -> int: ...

    @property
    def kv_capacity(self) -> int: ...

    @property
    def kv_used(self) -> int: ...

    @property
    def kv_cached(self) -> int: ...


class DelegatedMemoryStats:
    """Base class of a `KvAllocator` that reports the statistics of another object, such as its allocator."""

    def __init__(self, source: MemoryStats) -> None:
        self._stats = source

    @property
    def max_sequences(self) -> int:
        return self._stats.max_sequences

    @property
    def kv_capacity(self) -> int:
        return self._stats.kv_capacity

    @property
    def kv_used(self) -> int:
        return self._stats.kv_used

    @property
    def kv_cached(self) -> int:
        return self._stats.kv_cached
