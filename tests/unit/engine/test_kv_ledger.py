"""The account of KV memory."""

from hypothesis import given
from hypothesis import strategies as st

from services.engine.memory.ledger import GRAIN, KvLedger


def test_allocates_until_places_are_full() -> None:
    ledger = KvLedger(1000, 2)
    assert {ledger.allocate(1), ledger.allocate(1)} == {0, 1}
    assert ledger.allocate(1) is None
    ledger.free(0)
    assert ledger.allocate(1) == 0


def test_rejects_what_does_not_fit() -> None:
    ledger = KvLedger(100, 4)
    assert ledger.allocate(101) is None
    assert ledger.kv_used == 0 and len(ledger) == 0


def test_a_sequence_of_the_whole_capacity_fits() -> None:
    ledger = KvLedger(100, 4)
    slot = ledger.allocate(1)
    assert slot is not None and ledger.resize(slot, 100)
    assert ledger.kv_used == 100


def test_growth_is_ample_but_yields_to_need() -> None:
    ledger = KvLedger(10 * GRAIN, 4)
    slot = ledger.allocate(4 * GRAIN)
    assert slot is not None and ledger.resize(slot, 4 * GRAIN + 1)
    assert ledger.reserved(slot) == 6 * GRAIN
    assert ledger.allocate(4 * GRAIN) is not None
    assert not ledger.resize(slot, 7 * GRAIN)


def test_eviction_keeps_the_slot() -> None:
    ledger = KvLedger(100, 1)
    slot = ledger.allocate(50)
    assert slot is not None and ledger.resize(slot, 0)
    assert ledger.kv_used == 0 and ledger.allocate(1) is None
    assert ledger.resize(slot, 50)


def test_a_retired_slot_keeps_its_room_and_gives_back_its_place() -> None:
    ledger = KvLedger(256, 1)
    slot = ledger.allocate(64)
    assert slot is not None and ledger.allocate(64) is None
    ledger.retire(slot)
    other = ledger.allocate(64)
    assert other not in (None, slot) and ledger.allocate(64) is None
    assert (ledger.kv_used, ledger.kv_cached) == (128, 64)
    ledger.free(slot)
    assert (ledger.kv_used, ledger.kv_cached) == (64, 0)


@given(st.lists(st.tuples(st.sampled_from(["allocate", "resize", "free"]), st.integers(0, 400)), max_size=60))
def test_never_exceeds_its_budget(actions: list[tuple[str, int]]) -> None:
    ledger = KvLedger(500, 4)
    slots: list[int] = []
    for action, number in actions:
        if action == "allocate" and (slot := ledger.allocate(number)) is not None:
            slots.append(slot)
        elif slots and action == "resize" and ledger.resize(slots[number % len(slots)], number):
            assert ledger.reserved(slots[number % len(slots)]) >= number
        elif slots and action == "free":
            ledger.free(slots.pop(number % len(slots)))
        assert ledger.kv_used == sum(map(ledger.reserved, slots)) <= 500
