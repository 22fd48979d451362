"""Chained block keys, and the index of the slots that hold them."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.blocks import BLOCK_TOKENS, BlockChain
from flyserve.core.sequence import common_length
from services.engine.memory.prefix_cache import PrefixIndex

IDS = st.lists(st.integers(0, 1), max_size=5 * BLOCK_TOKENS)
ASKER = 99


def keys(ids: Sequence[int], salt: str = "") -> list[bytes]:
    return BlockChain(salt).keys(ids, len(ids) // BLOCK_TOKENS)


def spread(bits: Sequence[int]) -> list[int]:
    """Return a sequence whose blocks differ only where the bits differ."""
    return [1000 + bit for bit in bits for _ in range(BLOCK_TOKENS)]


@given(IDS, IDS)
def test_keys_are_equal_exactly_as_far_as_the_blocks_are(left: list[int], right: list[int]) -> None:
    equal = common_length(keys(left), keys(right))
    assert equal == common_length(left, right) // BLOCK_TOKENS
    assert not set(keys(left)[equal:]) & set(keys(right)[equal:])


def test_salts_have_no_key_in_common() -> None:
    ids = list(range(80))
    assert not set(keys(ids, "a")) & set(keys(ids, "b")) and not set(keys(ids)) & set(keys(ids, "a"))


def test_a_key_depends_on_all_tokens_before_it() -> None:
    ids = list(range(80))
    assert keys([500, *ids[1:]])[-1] != keys(ids)[-1]
    assert keys(ids[16:])[0] != keys(ids)[1]


@given(IDS, st.lists(st.tuples(st.integers(0, 80), IDS), max_size=4))
def test_a_chain_follows_its_sequence(ids: list[int], changes: list[tuple[int, list[int]]]) -> None:
    chain = BlockChain("s")
    for length, added in changes:
        chain.keys(ids, len(ids) // BLOCK_TOKENS)
        ids = ids[:length] + added
        chain.truncate(length)
        assert chain.keys(ids, len(ids) // BLOCK_TOKENS) == keys(ids, "s")


def test_the_longest_prefix_of_another_slot_is_found() -> None:
    index, ids = PrefixIndex(), list(range(64))
    index.extend(1, keys(ids[:32]))
    index.extend(2, keys(ids[:48]))
    assert index.match(keys(ids), 0, ASKER) == (2, 3)
    assert index.match(keys(ids), 0, 2) == (1, 2)
    assert index.match(keys(ids), 3, ASKER) is None
    assert index.match(keys(ids, "salt"), 0, ASKER) is None
    index.truncate(2, 47)
    assert index.match(keys(ids), 1, ASKER) == (1, 2)


def test_slots_that_cover_another() -> None:
    index, ids = PrefixIndex(), list(range(64))
    index.extend(1, keys(ids[:32]))
    index.extend(2, keys(ids))
    assert index.covering(1) == {2} and index.covering(2) == set()


ACTION = st.tuples(
    st.sampled_from(["extend", "truncate", "forget"]),
    st.integers(0, 3),
    st.lists(st.integers(0, 1), max_size=5),
)


@given(st.lists(ACTION, max_size=40), st.lists(st.integers(0, 1), max_size=5), st.integers(0, 5))
def test_the_index_equals_a_search_through_all_slots(
    actions: list[tuple[str, int, list[int]]], wanted: list[int], known: int
) -> None:
    index, model = PrefixIndex(), dict[int, list[int]]()
    for action, slot, bits in actions:
        held = model.get(slot, [])
        if action == "extend" and bits[: len(held)] == held:
            index.extend(slot, keys(spread(bits)))
            model[slot] = bits
        elif action == "truncate":
            index.truncate(slot, len(bits) * BLOCK_TOKENS + 7)
            model[slot] = held[: len(bits)]
        elif action == "forget":
            index.forget(slot)
            model.pop(slot, None)
    for slot in range(4):
        assert index.num_blocks(slot) == len(model.get(slot, []))
        lengths = {other: common_length(wanted, held) for other, held in model.items() if other != slot}
        longest = max(lengths.values(), default=0)
        found = index.match(keys(spread(wanted)), min(known, len(wanted)), slot)
        if longest <= min(known, len(wanted)):
            assert found is None
        else:
            assert found is not None and found.num_blocks == longest == lengths[found.slot]
        index.forget(slot)
        model.pop(slot, None)
    assert len(index) == 0
