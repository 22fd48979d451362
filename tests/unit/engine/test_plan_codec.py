"""Plans as integers and back; memory with replayed operations equals the original."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.request import SamplingParams
from services.engine.base import ForwardInput, KvAllocator
from services.engine.memory.kv_cache import ContiguousKvCache
from services.engine.sharding.plans import (
    OPERATIONS,
    GroupPlan,
    MemoryDiverged,
    Operation,
    RecordingAllocator,
    decode,
    encode,
    replay,
)

numbers = st.integers(-(2**63), 2**63 - 1)
operations = st.builds(
    Operation, st.sampled_from(OPERATIONS), st.lists(numbers, max_size=4).map(tuple), numbers
)


@st.composite
def forward_inputs(draw: st.DrawFn) -> ForwardInput:
    tokens = tuple(draw(st.lists(st.integers(0, 2**31), min_size=1, max_size=40)))
    num_outputs = draw(st.integers(0, len(tokens)))
    slot, start = draw(st.integers(0, 2**16)), draw(st.integers(0, 2**31))
    return ForwardInput(slot, start, tokens, num_outputs, SamplingParams(temperature=0.7), 3, (1, 2, *tokens))


plans = st.builds(
    GroupPlan,
    st.lists(operations, max_size=5).map(tuple),
    st.lists(forward_inputs(), max_size=5),
    st.booleans(),
)


@given(plans)
def test_a_decoded_plan_equals_the_encoded_one(plan: GroupPlan) -> None:
    values = encode(plan)
    arrived = decode(values)
    assert all(type(value) is int and -(2**63) <= value < 2**63 for value in values)
    assert (arrived.operations, arrived.is_last) == (plan.operations, plan.is_last)
    seen = [(item.slot, item.start, item.tokens, item.num_outputs) for item in arrived.inputs]
    assert seen == [(item.slot, item.start, item.tokens, item.num_outputs) for item in plan.inputs]
    assert [item.first_position for item in arrived.inputs] == [item.first_position for item in plan.inputs]


@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 7), st.integers(0, 400)), max_size=60))
def test_replayed_operations_give_equal_memory(actions: list[tuple[str, int, int]]) -> None:
    kv_cache, other = ContiguousKvCache(1024, 6), ContiguousKvCache(1024, 6)
    memory = RecordingAllocator(kv_cache)
    opened: list[int] = []
    retired: list[int] = []
    for name, index, num_tokens in actions:
        act(memory, opened, retired, name, index, num_tokens)
        for operation in decode(encode(GroupPlan(memory.take_operations()))).operations:
            replay(operation, other)
        assert (other.kv_used, other.kv_cached) == (memory.kv_used, memory.kv_cached)
    assert memory.take_operations() == ()


def act(
    memory: KvAllocator, opened: list[int], retired: list[int], name: str, index: int, num_tokens: int
) -> None:
    """Apply one operation to memory, if it is possible now."""
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


def test_diverged_memory_is_detected() -> None:
    memory, other = RecordingAllocator(ContiguousKvCache(1024, 2)), ContiguousKvCache(1024, 2)
    memory.allocate(64)
    other.allocate(64)
    with pytest.raises(MemoryDiverged, match=r"allocate\(64,\) returned 1, the leader recorded 0"):
        replay(memory.take_operations()[0], other)
