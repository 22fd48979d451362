"""The client's mirror and the server's sequence stay equal through drafts, roll-backs and lost state."""

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.errors import InvalidRequest
from flyserve.core.messages import StaleReason
from flyserve.core.sequence import (
    ReplicatedSequence,
    SequenceMirror,
    SequenceUpdate,
    StaleState,
    TokenSequence,
    common_length,
)

tokens_st = st.lists(st.integers(0, 99), max_size=6)


def reference_hash(ids: list[int]) -> int:
    """Hash as `protos/flyserve/v1/common.proto` defines it."""
    key, blocks = hashlib.blake2b(digest_size=16).digest(), len(ids) // 64
    for block in range(blocks):
        tokens = struct.pack("<64I", *ids[block * 64 : (block + 1) * 64])
        key = hashlib.blake2b(key + tokens, digest_size=16).digest()
    rest = ids[blocks * 64 :]
    last = hashlib.blake2b(key + struct.pack(f"<{len(rest)}I", *rest), digest_size=8).digest()
    return int.from_bytes(last, "little") if ids else 0


@given(
    st.lists(
        st.tuples(st.integers(0, 700), st.integers(0, 300), st.integers(0, 2**32 - 1), st.integers(0, 700)),
        max_size=8,
    )
)
def test_prefix_hashes_are_the_documented_ones_after_any_roll_back(
    steps: list[tuple[int, int, int, int]],
) -> None:
    sequence, ids = TokenSequence(), list[int]()
    for kept, added, token, hashed in steps:
        sequence.truncate(kept)
        del ids[kept:]
        sequence.extend([token] * added)
        ids += [token] * added
        sequence = sequence.copy() if hashed % 2 else sequence
        length = min(hashed, len(ids))
        assert sequence.prefix_hash(length) == reference_hash(ids[:length])
    assert sequence.ids == ids


def test_a_copy_is_independent() -> None:
    first = TokenSequence(range(1000))
    known = first.prefix_hash(1000)
    second = first.copy()
    second.truncate(300)
    second.extend([5] * 700)
    assert first.ids == list(range(1000)) and first.prefix_hash(1000) == known
    assert second.prefix_hash(1000) == reference_hash(second.ids) != known


@given(tokens_st, tokens_st)
def test_the_common_length_is_that_of_a_search_token_by_token(left: list[int], right: list[int]) -> None:
    length = common_length(left, tuple(right))
    assert left[:length] == right[:length]
    assert length == min(len(left), len(right)) or left[length] != right[length]


@given(st.lists(st.tuples(tokens_st, tokens_st, st.integers(0, 8), st.booleans()), max_size=12))
def test_server_and_client_hold_the_same_sequence(
    rounds: list[tuple[list[int], list[int], int, bool]],
) -> None:
    sequence, view, server = TokenSequence([1, 2, 3]), SequenceMirror(), ReplicatedSequence(vocab_size=100)
    decided = len(sequence)
    for kept, drafts, truncation, forgets in rounds:
        if forgets:
            server = ReplicatedSequence(vocab_size=100)
            view.forget()
        update, before = view.update(sequence, drafts, decided), list(server.tokens.ids)
        unchanged = server.apply(update)
        assert server.tokens.ids == [*sequence.ids, *drafts] and server.decided == decided
        assert unchanged >= update.keep and server.tokens.ids[:unchanged] == before[:unchanged]
        if not forgets and update.keep:
            assert update.keep == common_length(before, sequence.ids), "an update sends only what is new"
        sequence.truncate(max(decided, len(sequence) - truncation))
        sequence.extend(kept)
        decided = max(decided, len(sequence) - truncation)


def make_sequence() -> ReplicatedSequence:
    known = ReplicatedSequence(vocab_size=10, context_length=8)
    known.apply(SequenceUpdate(1, 0, (1, 2, 3), 2, 0))
    return known


def test_unknown_prefixes_are_stale_and_change_nothing() -> None:
    known = make_sequence()
    with pytest.raises(StaleState) as beyond:
        known.apply(SequenceUpdate(2, 4, (5,), 3, 0))
    with pytest.raises(StaleState) as wrong:
        known.apply(SequenceUpdate(2, 3, (5,), 3, 12345))
    assert (beyond.value.reason, wrong.value.reason) == (StaleReason.BEYOND_STATE, StaleReason.WRONG_HASH)
    assert known.tokens.ids == [1, 2, 3]


@pytest.mark.parametrize(
    ("update", "field"),
    [
        (SequenceUpdate(2, 0, (1, 10), 0, 0), "update.tokens[1]"),
        (SequenceUpdate(2, 0, (-1,), 0, 0), "update.tokens[0]"),
        (SequenceUpdate(2, -1, (1,), 0, 0), "update.keep"),
        (SequenceUpdate(2, 0, (1,) * 9, 0, 0), "update.tokens"),
        (SequenceUpdate(2, 0, (1,), 2, 0), "update.decided"),
        (SequenceUpdate(2, 0, (1,), -1, 0), "update.decided"),
        (SequenceUpdate(2, 1, (1,), 2, TokenSequence([1]).prefix_hash(1)), "update.keep"),
        (SequenceUpdate(2, 3, (1,), 1, TokenSequence([1, 2, 3]).prefix_hash(3)), "update.decided"),
    ],
)
def test_values_beyond_a_limit_name_their_field(update: SequenceUpdate, field: str) -> None:
    known = make_sequence()
    with pytest.raises(InvalidRequest) as error:
        known.apply(update)
    assert error.value.violations[0].field == field
    assert known.tokens.ids == [1, 2, 3]


def test_a_replay_replaces_the_sequence_and_returns_the_unchanged_length() -> None:
    known = make_sequence()
    assert known.apply(SequenceUpdate(9, 0, (1, 2, 7, 7), 1, 0)) == 2
    assert known.tokens.ids == [1, 2, 7, 7]
    assert known.decided == 1
