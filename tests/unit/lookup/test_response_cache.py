"""The response cache against a list that is searched from its end."""

from hypothesis import example, given
from hypothesis import strategies as st

from services.lookup.index.response_cache import ResponseCache

ORDERS = (1, 2, 4)
ALL = 10_000
ngrams_st = st.sampled_from(ORDERS).flatmap(lambda order: st.tuples(*[st.integers(0, 3)] * order))
added_st = st.lists(
    st.tuples(st.lists(st.integers(0, 3), max_size=12), st.sampled_from(["", "a"])), max_size=20
)


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
    cache, naive = ResponseCache(1000, ORDERS), Naive()
    for ids, own_salt in added:
        cache.add(ids, own_salt)
        naive.responses.append((ids, own_salt))
    assert cache.followers(ngram, salt, ALL) == naive.followers(ngram, salt)


@example([([0] * 9, ""), ([0] * 8 + [1, 0], ""), *[([0, 0], "")] * 2, *[([0, 0, 0], "")] * 4], 20, (1,))
@given(added_st, st.integers(0, 40), ngrams_st)
def test_the_oldest_responses_are_evicted(
    added: list[tuple[list[int], str]], max_tokens: int, ngram: tuple[int, ...]
) -> None:
    cache, naive = ResponseCache(max_tokens, ORDERS), Naive()
    for ids, salt in added:
        cache.add(ids, salt)
        if min(len(ids), max_tokens) > 1:
            naive.responses.append((ids[-max_tokens:], salt))
        assert len(cache) <= len(naive.responses)
        naive.responses = naive.responses[len(naive.responses) - len(cache) :]
        assert cache.num_tokens == sum(len(held) for held, _ in naive.responses) <= max_tokens
        assert cache.followers(ngram, "", ALL) == naive.followers(ngram, "")


def test_a_full_cache_evicts_no_more_than_necessary() -> None:
    cache = ResponseCache(100, ORDERS)
    for _ in range(50):
        cache.add([1, 2, 3, 4])
    assert cache.num_tokens == 80  # a response of 4 tokens takes 5 cells, one for its separator


def test_a_limit_selects_the_latest() -> None:
    cache = ResponseCache(100, ORDERS)
    for token in (5, 6, 7):
        cache.add([1, 2, token])
    assert cache.followers((1, 2), "", limit=2) == [7, 6]


def test_ten_million_tokens_take_some_hundred_megabytes() -> None:
    cache = ResponseCache(10_000_000)
    assert cache.num_bytes / 10_000_000 < 50
