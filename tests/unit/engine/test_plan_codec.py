"""What a leader tells: memory operations and rows, as integers and back; the repeated memory is the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fly.request import SamplingParams
from services.engine.base import Memory, Work
from services.engine.memory.arena import ContiguousArena
from services.engine.sharding.operations import OPERATIONS, Diverged, Operation, RecordingMemory, repeat
from services.engine.sharding.plan_codec import GroupPlan, decode, encode

numbers = st.integers(-(2**63), 2**63 - 1)
operations = st.builds(
    Operation, st.sampled_from(OPERATIONS), st.lists(numbers, max_size=4).map(tuple), numbers
)


@st.composite
def works(draw: st.DrawFn) -> Work:
    tokens = tuple(draw(st.lists(st.integers(0, 2**31), min_size=1, max_size=40)))
    num_outputs = draw(st.integers(0, len(tokens)))
    slot, start = draw(st.integers(0, 2**16)), draw(st.integers(0, 2**31))
    return Work(slot, start, tokens, num_outputs, SamplingParams(temperature=0.7), 3, (1, 2, *tokens))


plans = st.builds(
    GroupPlan, st.lists(operations, max_size=5).map(tuple), st.lists(works(), max_size=5), st.booleans()
)


@given(plans)
def test_a_plan_arrives_as_it_was(plan: GroupPlan) -> None:
    values = encode(plan)
    arrived = decode(values)
    assert all(type(value) is int and -(2**63) <= value < 2**63 for value in values)
    assert (arrived.operations, arrived.is_last) == (plan.operations, plan.is_last)
    seen = [(work.slot, work.start, work.tokens, work.num_outputs) for work in arrived.works]
    assert seen == [(work.slot, work.start, work.tokens, work.num_outputs) for work in plan.works]
    assert [work.first_position for work in arrived.works] == [work.first_position for work in plan.works]


@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 7), st.integers(0, 400)), max_size=60))
def test_a_repeated_memory_is_the_same(wishes: list[tuple[str, int, int]]) -> None:
    arena, other = ContiguousArena(1024, 6), ContiguousArena(1024, 6)
    memory = RecordingMemory(arena)
    opened: list[int] = []
    retired: list[int] = []
    for name, index, num_tokens in wishes:
        act(memory, opened, retired, name, index, num_tokens)
        for operation in decode(encode(GroupPlan(memory.take()))).operations:
            repeat(operation, other)
        assert (other.kv_used, other.kv_cached) == (memory.kv_used, memory.kv_cached)
    assert memory.take() == ()


def act(
    memory: Memory, opened: list[int], retired: list[int], name: str, index: int, num_tokens: int
) -> None:
    """One wish of a sequence: at another place, longer or shorter, begun like another, over, forgotten."""
    slot = opened[index % len(opened)] if opened else None
    if name == "allocate":
        found = memory.allocate(num_tokens)
        opened += [] if found is None else [found]
    elif name == "free" and retired:
        memory.free(retired.pop(index % len(retired)))
    elif slot is None:
        return
    elif name == "resize":
        memory.resize(slot, num_tokens, index or None)
    elif name == "copy_prefix":
        memory.copy_prefix(opened[0], slot, num_tokens)
    else:
        opened.remove(slot)
        memory.retire(slot, num_tokens)
        retired.append(slot)


def test_a_memory_that_has_diverged_is_noticed() -> None:
    memory, other = RecordingMemory(ContiguousArena(1024, 2)), ContiguousArena(1024, 2)
    memory.allocate(64)
    other.allocate(64)
    with pytest.raises(Diverged, match=r"allocate\(64,\) gives 1, elsewhere 0"):
        repeat(memory.take()[0], other)
