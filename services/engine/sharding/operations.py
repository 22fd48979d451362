"""Operations on KV memory: recorded by the leader, replayed by the followers to keep memory equal."""

from dataclasses import dataclass

from services.engine.base import KvAllocator, KvSlot
from services.engine.memory.memory_stats import DelegatedMemoryStats

OPERATIONS = ("allocate", "resize", "copy_prefix", "retire", "free")
"""Methods of `KvAllocator` that change it; all are deterministic, take and return numbers or None."""
_NONE = -1


class MemoryDiverged(RuntimeError):
    """A replayed operation returned another result than when it was recorded."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a method of `KvAllocator`.

    Attributes:
        name: Name of the method.
        arguments: Arguments as numbers; None is -1.
        result: Result as a number; None is -1.
    """

    name: str
    arguments: tuple[int, ...]
    result: int = _NONE


class RecordingAllocator(DelegatedMemoryStats):
    """A `KvAllocator` that records the operations on another one."""

    def __init__(self, memory: KvAllocator) -> None:
        super().__init__(memory)
        self._memory = memory
        self._operations: list[Operation] = []

    def allocate(self, num_tokens: int) -> KvSlot | None:
        slot = self._memory.allocate(num_tokens)
        self._record("allocate", slot, num_tokens)
        return slot

    def resize(self, slot: KvSlot, num_tokens: int, start: int | None = None) -> bool:
        has_room = self._memory.resize(slot, num_tokens, start)
        self._record("resize", has_room, slot, num_tokens, start)
        return has_room

    def copy_prefix(self, source: KvSlot, slot: KvSlot, num_tokens: int) -> bool:
        has_room = self._memory.copy_prefix(source, slot, num_tokens)
        self._record("copy_prefix", has_room, source, slot, num_tokens)
        return has_room

    def retire(self, slot: KvSlot, num_tokens: int) -> None:
        self._memory.retire(slot, num_tokens)
        self._record("retire", None, slot, num_tokens)

    def free(self, slot: KvSlot) -> None:
        self._memory.free(slot)
        self._record("free", None, slot)

    def take_operations(self) -> tuple[Operation, ...]:
        """Return the operations since the last call."""
        operations, self._operations = tuple(self._operations), []
        return operations

    def _record(self, name: str, result: int | None, *arguments: int | None) -> None:
        self._operations.append(Operation(name, tuple(map(_number, arguments)), _number(result)))


def replay(operation: Operation, memory: KvAllocator) -> None:
    """Apply a recorded operation to `memory`.

    Raises:
        MemoryDiverged: Its result differs from the recorded one.
    """
    arguments = (None if number == _NONE else number for number in operation.arguments)
    result = _number(getattr(memory, operation.name)(*arguments))
    if result != operation.result:
        raise MemoryDiverged(
            f"{operation.name}{operation.arguments} returned {result}, the leader recorded {operation.result}"
        )


def _number(value: int | None) -> int:
    return _NONE if value is None else int(value)
