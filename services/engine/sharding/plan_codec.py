"""What a leader tells its followers, as plain integers: memory operations, then the rows of a forward."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from fly.request import SamplingParams
from services.engine.base import Work
from services.engine.sharding.operations import OPERATIONS, Operation


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """What every rank does next.

    Attributes:
        operations: On KV memory, in order, since the last plan.
        works: Of the forward; none for a heartbeat. Followers see only their slot, start, tokens and number
            of outputs: they have no head.
        is_last: The group ends.
    """

    operations: tuple[Operation, ...] = ()
    works: Sequence[Work] = ()
    is_last: bool = False


def encode(plan: GroupPlan) -> list[int]:
    """As integers, each of which fits in 64 bits."""
    values = [int(plan.is_last), len(plan.operations), len(plan.works)]
    for operation in plan.operations:
        values += (OPERATIONS.index(operation.name), operation.result)
        values += (len(operation.arguments), *operation.arguments)
    for work in plan.works:
        values += (work.slot, work.start, work.num_outputs, len(work.tokens))
        values += work.tokens
    return values


def decode(values: Iterable[int]) -> GroupPlan:
    """What `encode` was given, as far as followers see it."""
    rest = iter(values)
    is_last, num_operations, num_works = islice(rest, 3)
    operations = tuple(_operation(rest) for _ in range(num_operations))
    works = tuple(_work(rest) for _ in range(num_works))
    return GroupPlan(operations, works, bool(is_last))


def _operation(rest: Iterator[int]) -> Operation:
    index, result, num_arguments = islice(rest, 3)
    return Operation(OPERATIONS[index], tuple(islice(rest, num_arguments)), result)


def _work(rest: Iterator[int]) -> Work:
    slot, start, num_outputs, num_tokens = islice(rest, 4)
    tokens = tuple(islice(rest, num_tokens))
    return Work(slot, start, tokens, num_outputs, SamplingParams(), 0, tokens)
