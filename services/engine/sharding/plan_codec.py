"""Plans from a leader to its followers as plain integers: memory operations, then rows of a forward."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from fly.request import SamplingParams
from services.engine.base import ForwardInput
from services.engine.sharding.operations import OPERATIONS, Operation


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
