"""The allocator of contiguous KV memory."""

from hypothesis import given
from hypothesis import strategies as st

from services.engine.forward.padding import Padding
from services.engine.memory.kv_cache import ContiguousKvCache
from services.engine.memory.slot_allocator import GRAIN, SlotAllocator


def test_allocates_until_max_sequences_are_open() -> None:
    allocator = SlotAllocator(1000, 2)
    assert {allocator.allocate(1), allocator.allocate(1)} == {0, 1}
    assert allocator.allocate(1) is None
    allocator.free(0)
    assert allocator.allocate(1) == 0


def test_growth_is_generous_while_memory_is_free() -> None:
    allocator = SlotAllocator(10 * GRAIN, 4)
    slot = allocator.allocate(4 * GRAIN)
    assert slot is not None and allocator.resize(slot, 4 * GRAIN + 1)
    assert allocator.reserved(slot) == 6 * GRAIN
    assert allocator.allocate(4 * GRAIN) is not None
    assert not allocator.resize(slot, 7 * GRAIN)


def test_a_retired_slot_keeps_its_memory_but_is_not_open() -> None:
    allocator = SlotAllocator(256, 1)
    slot = allocator.allocate(64)
    assert slot is not None and allocator.allocate(64) is None
    allocator.retire(slot, 0)
    other = allocator.allocate(64)
    assert other not in (None, slot) and allocator.allocate(64) is None
    assert (allocator.kv_used, allocator.kv_cached) == (128, 64)
    allocator.free(slot)
    assert (allocator.kv_used, allocator.kv_cached) == (64, 0)


@given(
    st.lists(st.tuples(st.sampled_from(["allocate", "resize", "free"]), st.integers(0, 700)), max_size=60),
    st.sampled_from([Padding(), Padding(4, (16, 192, 512)), Padding(4, (512,))]),
)
def test_never_exceeds_its_budget(actions: list[tuple[str, int]], padding: Padding) -> None:
    allocator = ContiguousKvCache(1100, 4, padding=padding)
    slots: list[int] = []
    for action, number in actions:
        if action == "allocate" and (slot := allocator.allocate(number)) is not None:
            slots.append(slot)
        elif slots and action == "resize" and allocator.resize(slots[number % len(slots)], number):
            assert allocator.reserved(slots[number % len(slots)]) >= number
        elif slots and action == "free":
            allocator.free(slots.pop(number % len(slots)))
        assert allocator.kv_used == sum(map(allocator.reserved, slots)) <= 1100
        sizes = [padding.padded_keys(allocator.reserved(slot)) for slot in slots]
        assert sum(sizes) <= 1100 or sum(map(bool, sizes)) == 1, (
            "all that is stored counts, keys beside it too"
        )
    for slot in slots:
        allocator.free(slot)
    assert allocator.allocate(1100) is not None, "the longest sequence fits when it is alone"
