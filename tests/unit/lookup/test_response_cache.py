"""The response cache against a list that is searched from its end."""

from hypothesis import example, given
from hypothesis import strategies as st

from services.lookup.index.response_cache import ResponseCache
from tests.support.linked_cache import LinkedCache

ORDERS = (1, 2, 4)
ALL = 10_000
ngrams_st = st.sampled_from(ORDERS).flatmap(lambda order: st.tuples(*[st.integers(0, 3)] * order))
responses_st = st.tuples(st.lists(st.integers(0, 3), max_size=12), st.sampled_from(["", "a"]))
added_st = st.lists(responses_st, max_size=20)
moves_st = st.lists(responses_st | st.integers(1, 9), max_size=40)
"""Responses that are added and, between them, numbers of tokens that are linked."""


class Naive:
    """The same cache as a list of whole responses."""

    def __init__(self) -> None:
        self.responses: list[tuple[list[int], str]] = []

    def followers(self, ngram: tuple[int, ...], salt: str) -> list[int]:
        """Return the tokens that followed the n-gram, the latest first."""
        order = len(ngram)
        return [
            ids[end]
            for ids, own_salt in reversed(self.responses)
            for end in range(len(ids) - 1, order - 1, -1)
            if own_salt == salt and tuple(ids[end - order : end]) == ngram
        ]


@given(added_st, ngrams_st, st.sampled_from(["", "a", "b"]))
def test_it_finds_followers_within_the_same_salt(
    added: list[tuple[list[int], str]], ngram: tuple[int, ...], salt: str
) -> None:
    cache, naive = LinkedCache(1000, ORDERS), Naive()
    for ids, own_salt in added:
        cache.add(ids, own_salt)
        naive.responses.append((ids, own_salt))
    assert cache.followers(ngram, salt, ALL) == naive.followers(ngram, salt)


@example([([0] * 9, ""), ([0] * 8 + [1, 0], ""), *[([0, 0], "")] * 2, *[([0, 0, 0], "")] * 4], 20, (1,))
@given(added_st, st.integers(0, 40), ngrams_st)
def test_the_oldest_responses_are_evicted(
    added: list[tuple[list[int], str]], max_tokens: int, ngram: tuple[int, ...]
) -> None:
    cache, naive = LinkedCache(max_tokens, ORDERS), Naive()
    for ids, salt in added:
        cache.add(ids, salt)
        if min(len(ids), max_tokens) > 1:
            naive.responses.append((ids[-max_tokens:], salt))
        assert len(cache) <= len(naive.responses)
        naive.responses = naive.responses[len(naive.responses) - len(cache) :]
        assert cache.num_tokens == sum(len(held) for held, _ in naive.responses) <= max_tokens
        assert cache.followers(ngram, "", ALL) == naive.followers(ngram, "")


def test_a_full_cache_evicts_no_more_than_necessary() -> None:
    cache = LinkedCache(100, ORDERS)
    for _ in range(50):
        cache.add([1, 2, 3, 4])
    assert cache.num_tokens == 80  # a response of 4 tokens takes 5 cells, one for its separator


def test_short_responses_of_many_salts_do_not_exceed_a_number() -> None:
    """Each response and its salt take memory beside the tokens that the cache is limited to."""
    for max_tokens, most in ((30_000, 1024), (64_000, 2000)):
        cache = LinkedCache(max_tokens, ORDERS)
        for number in range(3000):
            cache.add([1, 2, number], f"salt {number}")
        assert len(cache) == most and cache.num_tokens == 3 * most
        assert cache.followers((1, 2), "salt 2999", ALL) == [2999]
        assert not cache.followers((1, 2), "salt 0", ALL)


def test_a_limit_selects_the_latest() -> None:
    cache = LinkedCache(100, ORDERS)
    for token in (5, 6, 7):
        cache.add([1, 2, token])
    assert cache.followers((1, 2), "", limit=2) == [7, 6]


def make(move: tuple[list[int], str] | int, whole: LinkedCache, parts: ResponseCache) -> None:
    """Add a response to both caches, or link a number of tokens of the one that is linked in parts."""
    if isinstance(move, int):
        parts.link(move)
    else:
        whole.add(*move)
        parts.add(*move)


@given(moves_st, st.integers(1, 9))
def test_linked_in_parts_the_index_is_that_of_one_piece(
    moves: list[tuple[list[int], str] | int], last: int
) -> None:
    whole, parts = LinkedCache(1000, ORDERS), ResponseCache(1000, ORDERS)
    for move in moves:
        make(move, whole, parts)
    while parts.link(last):
        pass
    assert parts._indices == whole._indices


@given(moves_st, st.integers(0, 40), ngrams_st, st.sampled_from(["", "a"]))
def test_evictions_between_the_parts_change_nothing_that_is_found(
    moves: list[tuple[list[int], str] | int], max_tokens: int, ngram: tuple[int, ...], salt: str
) -> None:
    whole, parts = LinkedCache(max_tokens, ORDERS), ResponseCache(max_tokens, ORDERS)
    for move in moves:
        make(move, whole, parts)
        cached = iter(whole.followers(ngram, salt, ALL))
        assert all(token in cached for token in parts.followers(ngram, salt, ALL)), "in the same order"
    while parts.link(3):
        pass
    assert parts.followers(ngram, salt, ALL) == whole.followers(ngram, salt, ALL)
    assert (len(parts), parts.num_tokens) == (len(whole), whole.num_tokens)


def test_a_response_is_found_as_far_as_it_is_linked() -> None:
    cache = ResponseCache(1000, ORDERS)
    cache.add(range(100, 200))
    cache.add(range(300, 320))
    assert not cache.followers((110,), "", ALL)
    assert cache.link(50)
    assert cache.followers((148,), "", ALL) == [149] and not cache.followers((149,), "", ALL)
    assert cache.link(60), "the rest of the first response and a part of the second one"
    assert cache.followers((198,), "", ALL) == [199] and cache.followers((308,), "", ALL) == [309]
    assert not cache.followers((309,), "", ALL)
    assert not cache.link(10) and not cache.link()
    assert cache.followers((318,), "", ALL) == [319]


def test_an_evicted_response_is_linked_no_further() -> None:
    cache = ResponseCache(100, ORDERS)
    cache.add(range(100, 190))
    assert cache.link(40)
    cache.add(range(200, 290))
    assert not cache.followers((110,), "", ALL)
    assert not cache.link(90), "only the second response is left"
    assert cache.followers((210,), "", ALL) == [211] and not cache.followers((150,), "", ALL)


def test_ten_million_tokens_take_some_hundred_megabytes() -> None:
    cache = ResponseCache(10_000_000)
    assert cache.num_bytes / 10_000_000 < 50
