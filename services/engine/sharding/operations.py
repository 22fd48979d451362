"""Operations on KV memory: recorded where they are decided, repeated where memory must be equal."""

from dataclasses import dataclass

from services.engine.base import Memory, Slot
from services.engine.memory.figures import MemoryFigures

OPERATIONS = ("allocate", "resize", "copy_prefix", "retire", "free")
"""Methods of `Memory` that change it; each is deterministic, takes and returns numbers or None."""
_NOTHING = -1


class Diverged(RuntimeError):
    """The same operation had another result here than where it was recorded."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a method of `Memory`.

    Attributes:
        name: The method's.
        arguments: Of the call, as numbers.
        result: What it returned, as a number.
    """

    name: str
    arguments: tuple[int, ...]
    result: int = _NOTHING


class RecordingMemory(MemoryFigures):
    """A `Memory` that remembers what was done to it until that is taken."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self._memory = memory
        self._operations: list[Operation] = []

    def allocate(self, num_tokens: int) -> Slot | None:
        slot = self._memory.allocate(num_tokens)
        self._record("allocate", slot, num_tokens)
        return slot

    def resize(self, slot: Slot, num_tokens: int, start: int | None = None) -> bool:
        has_room = self._memory.resize(slot, num_tokens, start)
        self._record("resize", has_room, slot, num_tokens, start)
        return has_room

    def copy_prefix(self, source: Slot, slot: Slot, num_tokens: int) -> bool:
        has_room = self._memory.copy_prefix(source, slot, num_tokens)
        self._record("copy_prefix", has_room, source, slot, num_tokens)
        return has_room

    def retire(self, slot: Slot, num_tokens: int) -> None:
        self._memory.retire(slot, num_tokens)
        self._record("retire", None, slot, num_tokens)

    def free(self, slot: Slot) -> None:
        self._memory.free(slot)
        self._record("free", None, slot)

    def take(self) -> tuple[Operation, ...]:
        """What was done since the last call."""
        operations, self._operations = tuple(self._operations), []
        return operations

    def _record(self, name: str, result: int | None, *arguments: int | None) -> None:
        self._operations.append(Operation(name, tuple(map(_number, arguments)), _number(result)))


def repeat(operation: Operation, memory: Memory) -> None:
    """Does to `memory` what was done elsewhere.

    Raises:
        Diverged: Its result is another.
    """
    arguments = (None if number == _NOTHING else number for number in operation.arguments)
    result = _number(getattr(memory, operation.name)(*arguments))
    if result != operation.result:
        raise Diverged(f"{operation.name}{operation.arguments} gives {result}, elsewhere {operation.result}")


def _number(value: int | None) -> int:
    return _NOTHING if value is None else int(value)
