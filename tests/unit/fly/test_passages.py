"""Passages of a memory: those in which a sequence's last n-grams occur, none twice."""

from hypothesis import given
from hypothesis import strategies as st

from fly.passages import PassageFinder
from fly.response_memory import ResponseMemory
from fly.suffix import Passages, SuffixGuesser

responses_st = st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=40), max_size=12)


def remembering(responses: list[list[int]], max_tokens: int = 1000) -> ResponseMemory:
    memory = ResponseMemory(max_tokens)
    for response in responses:
        memory.add(response)
    return memory


@given(responses_st, st.lists(st.integers(0, 5), max_size=30), st.integers(0, 200), st.integers(60, 300))
def test_passages_are_pieces_of_responses_within_the_budget(
    responses: list[list[int]], ids: list[int], max_tokens: int, memory_tokens: int
) -> None:
    passages = PassageFinder(remembering(responses, memory_tokens), "").find(ids, max_tokens)
    assert sum(map(len, passages)) <= max_tokens
    for passage in passages:
        assert any(
            tuple(response[start : start + len(passage)]) == passage
            for response in responses
            for start in range(len(response))
        )


def test_a_passage_tells_how_an_earlier_response_went_on() -> None:
    lead = list(range(100, 130))
    finder = PassageFinder(remembering([[*lead, 1, 2, 3, 4, 5]]), "")
    assert finder.find([50, 1, 2], 100) == [(*lead[-14:], 1, 2, 3, 4, 5)]


def test_nothing_is_told_twice() -> None:
    finder = PassageFinder(remembering([[9, 8, 7, 1, 2, 3, 4, 5]]), "")
    assert len(finder.find([50, 1, 2], 100)) == 1
    assert finder.find([50, 1, 2], 100) == finder.find([50, 1, 2, 3], 100) == []


def test_other_salts_are_told_nothing() -> None:
    memory = ResponseMemory(1000)
    memory.add([1, 2, 3, 4], "a")
    assert PassageFinder(memory, "").find([1, 2], 100) == PassageFinder(memory, "b").find([1, 2], 100) == []
    assert PassageFinder(memory, "a").find([1, 2], 100) == [(1, 2, 3, 4)]


@given(responses_st, st.lists(st.integers(0, 5), min_size=2, max_size=10))
def test_guesses_from_passages_need_no_memory(responses: list[list[int]], ids: list[int]) -> None:
    passages = Passages()
    for passage in PassageFinder(remembering(responses), "").find(ids, 10_000):
        passages.add(passage)
    guesser = SuffixGuesser(passages)
    guesser.follow(ids, 0)
    known = {token for response in responses for token in response} | set(ids)
    assert set(guesser.guess(8).tokens) <= known
