"""Snippets of a memory: those in which a sequence's last n-grams occur, none twice."""

from hypothesis import given
from hypothesis import strategies as st

from fly.lookup.response_cache import ResponseCache
from fly.lookup.snippets import SnippetRetriever
from fly.lookup.suffix import Snippets, SuffixProposer

responses_st = st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=40), max_size=12)


def remembering(responses: list[list[int]], max_tokens: int = 1000) -> ResponseCache:
    memory = ResponseCache(max_tokens)
    for response in responses:
        memory.add(response)
    return memory


@given(responses_st, st.lists(st.integers(0, 5), max_size=30), st.integers(0, 200), st.integers(60, 300))
def test_snippets_are_pieces_of_responses_within_the_budget(
    responses: list[list[int]], ids: list[int], max_tokens: int, response_cache_tokens: int
) -> None:
    snippets = SnippetRetriever(remembering(responses, response_cache_tokens), "").find(ids, max_tokens)
    assert sum(map(len, snippets)) <= max_tokens
    for snippet in snippets:
        assert any(
            tuple(response[start : start + len(snippet)]) == snippet
            for response in responses
            for start in range(len(response))
        )


def test_a_snippet_tells_how_an_earlier_response_went_on() -> None:
    lead = list(range(100, 130))
    finder = SnippetRetriever(remembering([[*lead, 1, 2, 3, 4, 5]]), "")
    assert finder.find([50, 1, 2], 100) == [(*lead[-14:], 1, 2, 3, 4, 5)]


def test_nothing_is_told_twice() -> None:
    finder = SnippetRetriever(remembering([[9, 8, 7, 1, 2, 3, 4, 5]]), "")
    assert len(finder.find([50, 1, 2], 100)) == 1
    assert finder.find([50, 1, 2], 100) == finder.find([50, 1, 2, 3], 100) == []


def test_other_salts_are_told_nothing() -> None:
    memory = ResponseCache(1000)
    memory.add([1, 2, 3, 4], "a")
    assert (
        SnippetRetriever(memory, "").find([1, 2], 100)
        == SnippetRetriever(memory, "b").find([1, 2], 100)
        == []
    )
    assert SnippetRetriever(memory, "a").find([1, 2], 100) == [(1, 2, 3, 4)]


@given(responses_st, st.lists(st.integers(0, 5), min_size=2, max_size=10))
def test_proposals_from_snippets_need_no_memory(responses: list[list[int]], ids: list[int]) -> None:
    snippets = Snippets()
    for snippet in SnippetRetriever(remembering(responses), "").find(ids, 10_000):
        snippets.add(snippet)
    proposer = SuffixProposer(snippets)
    proposer.follow(ids, 0)
    known = {token for response in responses for token in response} | set(ids)
    assert set(proposer.propose(8).tokens) <= known
