"""Plans of a sharded model: operations on KV memory, then rows of a forward; encoded as plain integers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from flyserve.core.request import SamplingParams
from services.engine.base import DelegatedMemoryStats, ForwardInput, KvAllocator, KvSlot

OPERATIONS = ("allocate", "resize", "copy_prefix", "retire", "free")
"""Methods of `KvAllocator` that change it; all are deterministic, take and return numbers or None."""
_NONE = -1


class MemoryDiverged(RuntimeError):
    """A replayed operation returned another result than when it was recorded."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a method of `KvAllocator`.

    Attributes:
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


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The next step of all ranks.

    Attributes:
        operations: Operations on KV memory since the last plan, in order.
        inputs: Inputs of the forward; empty for a heartbeat. Followers have no head, so only slot, start,
            tokens and number of outputs are sent.
        is_last: The followers end after this plan.
    """

    operations: tuple[Operation, ...] = ()
    inputs: Sequence[ForwardInput] = ()
    is_last: bool = False


def encode(plan: GroupPlan) -> list[int]:
    """Return the plan as integers that fit in 64 bits."""
    values = [int(plan.is_last), len(plan.operations), len(plan.inputs)]
    for operation in plan.operations:
        values += (OPERATIONS.index(operation.name), operation.result)
        values += (len(operation.arguments), *operation.arguments)
    for item in plan.inputs:
        values += (item.slot, item.start, item.num_outputs, len(item.tokens))
        values += item.tokens
    return values


def decode(values: Iterable[int]) -> GroupPlan:
    """Return the plan that was encoded, without what followers do not need."""
    rest = iter(values)
    is_last, num_operations, num_inputs = islice(rest, 3)
    operations = tuple(_operation(rest) for _ in range(num_operations))
    inputs = tuple(_input(rest) for _ in range(num_inputs))
    return GroupPlan(operations=operations, inputs=inputs, is_last=bool(is_last))


def _operation(rest: Iterator[int]) -> Operation:
    index, result, num_arguments = islice(rest, 3)
    return Operation(name=OPERATIONS[index], arguments=tuple(islice(rest, num_arguments)), result=result)


def _input(rest: Iterator[int]) -> ForwardInput:
    slot, start, num_outputs, num_tokens = islice(rest, 4)
    tokens = tuple(islice(rest, num_tokens))
    return ForwardInput(
        slot=slot,
        start=start,
        tokens=tokens,
        num_outputs=num_outputs,
        sampling=SamplingParams(),
        prompt_length=0,
        history=tokens,
    )
