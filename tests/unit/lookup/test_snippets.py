"""Snippets of cached responses: those in which the last n-grams of a sequence occur, each at most once."""

from hypothesis import given
from hypothesis import strategies as st

from services.lookup.index.response_cache import ResponseCache, SnippetRetriever
from services.lookup.index.suffix import Snippets, SuffixProposer
from tests.support.linked_cache import LinkedCache

responses_st = st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=40), max_size=12)


def filled_cache(responses: list[list[int]], max_tokens: int = 1000) -> ResponseCache:
    cache = LinkedCache(max_tokens)
    for response in responses:
        cache.add(response)
    return cache


@given(responses_st, st.lists(st.integers(0, 5), max_size=30), st.integers(0, 200), st.integers(60, 300))
def test_snippets_are_parts_of_responses_within_the_budget(
    responses: list[list[int]], ids: list[int], max_tokens: int, response_cache_tokens: int
) -> None:
    snippets = SnippetRetriever(filled_cache(responses, response_cache_tokens), "").find(ids, max_tokens)
    assert sum(map(len, snippets)) <= max_tokens
    for snippet in snippets:
        assert any(
            tuple(response[start : start + len(snippet)]) == snippet
            for response in responses
            for start in range(len(response))
        )


def test_a_snippet_shows_how_an_earlier_response_continued() -> None:
    lead = list(range(100, 130))
    retriever = SnippetRetriever(filled_cache([[*lead, 1, 2, 3, 4, 5]]), "")
    assert retriever.find([50, 1, 2], 100) == [(*lead[-14:], 1, 2, 3, 4, 5)]


def test_no_snippet_is_sent_twice() -> None:
    retriever = SnippetRetriever(filled_cache([[9, 8, 7, 1, 2, 3, 4, 5]]), "")
    assert len(retriever.find([50, 1, 2], 100)) == 1
    assert retriever.find([50, 1, 2], 100) == retriever.find([50, 1, 2, 3], 100) == []


def test_other_salts_get_no_snippets() -> None:
    cache = LinkedCache(1000)
    cache.add([1, 2, 3, 4], "a")
    assert (
        SnippetRetriever(cache, "").find([1, 2], 100) == SnippetRetriever(cache, "b").find([1, 2], 100) == []
    )
    assert SnippetRetriever(cache, "a").find([1, 2], 100) == [(1, 2, 3, 4)]


@given(responses_st, st.lists(st.integers(0, 5), min_size=2, max_size=10))
def test_proposals_from_snippets_need_no_cache(responses: list[list[int]], ids: list[int]) -> None:
    snippets = Snippets()
    for snippet in SnippetRetriever(filled_cache(responses), "").find(ids, 10_000):
        snippets.add(snippet)
    proposer = SuffixProposer(snippets)
    proposer.follow(ids, 0)
    known = {token for response in responses for token in response} | set(ids)
    assert set(proposer.propose(8)) <= known


def test_a_repeat_is_sent_without_gaps_before_it_is_needed() -> None:
    text = [1000 + number for number in range(500)]
    retriever, received = SnippetRetriever(filled_cache([text]), ""), set[int]()
    for length in range(16, 480, 12):
        assert set(text[length : length + 1]) <= received or length == 16
        snippets = retriever.find(text[:length], 128)
        assert sum(map(len, snippets)) <= 128
        received.update(*snippets)
        assert set(text[length : length + 28]) <= received, "what the next two drafts need"


def test_a_repeat_fits_the_budget_or_is_left_out() -> None:
    text = list(range(1000, 1100))
    for max_tokens in range(40):
        snippets = SnippetRetriever(filled_cache([text]), "").find(text[:50], max_tokens)
        assert sum(map(len, snippets)) <= max_tokens
