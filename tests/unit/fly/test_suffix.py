"""Suffix proposals: the index against a brute-force search, and what is proposed of sequence and memory."""

from hypothesis import given
from hypothesis import strategies as st

from fly.lookup.ngram import Proposal
from fly.lookup.response_cache import ResponseCache
from fly.lookup.suffix import SaltedMemory, SequenceIndex, SuffixProposer

ORDERS = (1, 2, 4)
ngrams_st = st.sampled_from(ORDERS).flatmap(lambda order: st.tuples(*[st.integers(0, 3)] * order))
steps_st = st.lists(st.tuples(st.integers(0, 12), st.lists(st.integers(0, 3), max_size=10)), max_size=10)


def brute_force(ids: list[int], ngram: tuple[int, ...]) -> list[int]:
    ends = range(len(ids) - 1, len(ngram) - 1, -1)
    return [ids[end] for end in ends if tuple(ids[end - len(ngram) : end]) == ngram]


@given(steps_st, ngrams_st)
def test_it_finds_every_place_whatever_was_rolled_back(
    steps: list[tuple[int, list[int]]], ngram: tuple[int, ...]
) -> None:
    index, ids = SequenceIndex(ORDERS), []
    for length, appended in steps:
        index.truncate(length)
        del ids[length:]
        index.extend(appended)
        ids.extend(appended)
        assert index.followers(ngram, limit=1000) == brute_force(ids, ngram)


def proposer(memory: ResponseCache, ids: list[int], salt: str = "") -> SuffixProposer:
    made = SuffixProposer(SaltedMemory(memory, salt))
    made.update(ids, 0)
    return made


def test_where_nothing_is_known_there_is_no_proposal() -> None:
    assert proposer(ResponseCache(100), [1, 2, 3]).propose(5) == Proposal()
    assert proposer(ResponseCache(100), [1, 2, 1, 2]).propose(0) == Proposal()
    assert proposer(ResponseCache(100), []).propose(5) == Proposal()


def test_it_goes_on_as_finished_responses_went_on() -> None:
    memory = ResponseCache(1000)
    for _ in range(8):
        memory.add([1, 2, 3, 4, 5, 6, 7, 8])
    proposal = proposer(memory, [9, 1, 2]).propose(4)
    assert proposal.tokens == (3, 4, 5, 6)
    assert proposal.match_length == 2 and 0.8 < proposal.confidence < 1


def test_it_stops_at_a_responses_end() -> None:
    memory = ResponseCache(1000)
    for _ in range(8):
        memory.add([1, 2, 3])
    assert proposer(memory, [1, 2]).propose(4).tokens == (3,)


def test_it_stops_where_the_occurrences_disagree() -> None:
    memory = ResponseCache(1000)
    for last in range(10, 30):
        memory.add([1, 2, 3, last])
    assert proposer(memory, [1, 2]).propose(4).tokens == (3,)


def test_what_only_the_sequence_knows_fills_the_slots_of_the_wording() -> None:
    memory = ResponseCache(1000)
    for name in range(100, 108):
        memory.add([7, 1, 2, name, 3, 4, 5, 6])
    ids = [2, 50, 9, 2, 50, 9, 2, 50, 9, 7, 1]
    assert proposer(memory, ids).propose(6).tokens[:2] == (2, 50)


def test_salts_do_not_share() -> None:
    memory = ResponseCache(1000)
    memory.add([1, 2, 3, 4], "a")
    assert proposer(memory, [1, 2], "a").propose(2).tokens == (3, 4)
    assert proposer(memory, [1, 2], "b").propose(2) == proposer(memory, [1, 2]).propose(2) == Proposal()


def test_confidence_grows_with_agreement() -> None:
    memory = ResponseCache(1000)
    memory.add([1, 2, 3, 4])
    once = proposer(memory, [1, 2]).propose(1).confidence
    memory.add([1, 2, 3, 4])
    assert 0 < once < proposer(memory, [1, 2]).propose(1).confidence < 1


def test_what_was_dropped_is_proposed_again_behind_the_correction() -> None:
    made = proposer(ResponseCache(100), [1, 2, 30, 5, 6, 7, 8])
    made.update([1, 2, 40, 5], unchanged=2)
    assert made.propose(3).tokens == (6, 7, 8)


def test_the_own_sequence_counts_more_than_others() -> None:
    memory = ResponseCache(100)
    memory.add([1, 2, 3])
    assert proposer(memory, [1, 2, 4, 1, 2]).propose(1).tokens == (4,)
