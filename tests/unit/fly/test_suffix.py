"""Suffix guesses: the index against a brute-force search, and what is guessed of sequence and memory."""

from hypothesis import given
from hypothesis import strategies as st

from fly.lookup import Guess
from fly.response_memory import ResponseMemory
from fly.suffix import SaltedMemory, SequenceIndex, SuffixGuesser

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


def guesser(memory: ResponseMemory, ids: list[int], salt: str = "") -> SuffixGuesser:
    made = SuffixGuesser(SaltedMemory(memory, salt))
    made.update(ids, 0)
    return made


def test_where_nothing_is_known_there_is_no_guess() -> None:
    assert guesser(ResponseMemory(100), [1, 2, 3]).guess(5) == Guess()
    assert guesser(ResponseMemory(100), [1, 2, 1, 2]).guess(0) == Guess()
    assert guesser(ResponseMemory(100), []).guess(5) == Guess()


def test_it_goes_on_as_finished_responses_went_on() -> None:
    memory = ResponseMemory(1000)
    for _ in range(8):
        memory.add([1, 2, 3, 4, 5, 6, 7, 8])
    guess = guesser(memory, [9, 1, 2]).guess(4)
    assert guess.tokens == (3, 4, 5, 6)
    assert guess.match_length == 2 and 0.8 < guess.confidence < 1


def test_it_stops_at_a_responses_end() -> None:
    memory = ResponseMemory(1000)
    for _ in range(8):
        memory.add([1, 2, 3])
    assert guesser(memory, [1, 2]).guess(4).tokens == (3,)


def test_it_stops_where_the_occurrences_disagree() -> None:
    memory = ResponseMemory(1000)
    for last in range(10, 30):
        memory.add([1, 2, 3, last])
    assert guesser(memory, [1, 2]).guess(4).tokens == (3,)


def test_what_only_the_sequence_knows_fills_the_slots_of_the_wording() -> None:
    memory = ResponseMemory(1000)
    for name in range(100, 108):
        memory.add([7, 1, 2, name, 3, 4, 5, 6])
    ids = [2, 50, 9, 2, 50, 9, 2, 50, 9, 7, 1]
    assert guesser(memory, ids).guess(6).tokens[:2] == (2, 50)


def test_salts_do_not_share() -> None:
    memory = ResponseMemory(1000)
    memory.add([1, 2, 3, 4], "a")
    assert guesser(memory, [1, 2], "a").guess(2).tokens == (3, 4)
    assert guesser(memory, [1, 2], "b").guess(2) == guesser(memory, [1, 2]).guess(2) == Guess()


def test_confidence_grows_with_agreement() -> None:
    memory = ResponseMemory(1000)
    memory.add([1, 2, 3, 4])
    once = guesser(memory, [1, 2]).guess(1).confidence
    memory.add([1, 2, 3, 4])
    assert 0 < once < guesser(memory, [1, 2]).guess(1).confidence < 1


def test_what_was_dropped_is_guessed_again_behind_the_correction() -> None:
    made = guesser(ResponseMemory(100), [1, 2, 30, 5, 6, 7, 8])
    made.update([1, 2, 40, 5], unchanged=2)
    assert made.guess(3).tokens == (6, 7, 8)


def test_the_own_sequence_counts_more_than_others() -> None:
    memory = ResponseMemory(100)
    memory.add([1, 2, 3])
    assert guesser(memory, [1, 2, 4, 1, 2]).guess(1).tokens == (4,)
