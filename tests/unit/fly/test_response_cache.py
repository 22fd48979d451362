"""The memory of responses against a list that is searched from its end."""

from hypothesis import given
from hypothesis import strategies as st

from fly.lookup.response_cache import ResponseCache

ORDERS = (1, 2, 4)
ALL = 10_000
ngrams_st = st.sampled_from(ORDERS).flatmap(lambda order: st.tuples(*[st.integers(0, 3)] * order))
added_st = st.lists(
    st.tuples(st.lists(st.integers(0, 3), max_size=12), st.sampled_from(["", "a"])), max_size=20
)


class Naive:
    """The same, as a list of whole responses."""

    def __init__(self) -> None:
        self.responses: list[tuple[list[int], str]] = []

    def followers(self, ngram: tuple[int, ...], salt: str) -> list[int]:
        """What followed the n-gram, the latest first."""
        order = len(ngram)
        return [
            ids[end]
            for ids, its_salt in reversed(self.responses)
            for end in range(len(ids) - 1, order - 1, -1)
            if its_salt == salt and tuple(ids[end - order : end]) == ngram
        ]


@given(added_st, ngrams_st, st.sampled_from(["", "a", "b"]))
def test_it_finds_what_followed_within_the_same_salt(
    added: list[tuple[list[int], str]], ngram: tuple[int, ...], salt: str
) -> None:
    memory, naive = ResponseCache(1000, ORDERS), Naive()
    for ids, its_salt in added:
        memory.add(ids, its_salt)
        naive.responses.append((ids, its_salt))
    assert memory.followers(ngram, salt, ALL) == naive.followers(ngram, salt)


@given(added_st, st.integers(4, 40), ngrams_st)
def test_the_oldest_responses_give_way(
    added: list[tuple[list[int], str]], max_tokens: int, ngram: tuple[int, ...]
) -> None:
    memory, naive = ResponseCache(max_tokens, ORDERS), Naive()
    for ids, salt in added:
        memory.add(ids, salt)
        if len(ids) > 1:
            naive.responses.append((ids[-max_tokens:], salt))
        naive.responses = naive.responses[len(naive.responses) - len(memory) :]
        assert memory.num_tokens == sum(len(held) for held, _ in naive.responses) <= max_tokens
        assert memory.followers(ngram, "", ALL) == naive.followers(ngram, "")
    assert len(memory) + memory.num_evicted == sum(len(ids) > 1 for ids, _ in added)


def test_a_full_memory_has_given_up_no_more_than_it_must() -> None:
    memory = ResponseCache(100, ORDERS)
    for _ in range(50):
        memory.add([1, 2, 3, 4])
    assert memory.num_tokens == 80  # every response of 4 takes a cell more for its end


def test_a_limit_takes_the_latest() -> None:
    memory = ResponseCache(100, ORDERS)
    for token in (5, 6, 7):
        memory.add([1, 2, token])
    assert memory.followers((1, 2), "", limit=2) == [7, 6]


def test_salts_that_hold_nothing_any_more_are_forgotten() -> None:
    memory = ResponseCache(10, ORDERS)
    memory.add([1, 2, 3, 4], "a")
    for _ in range(3):
        memory.add([1, 2, 3, 4], "b")
    assert memory.followers((1, 2), "a", ALL) == []
    memory.add([1, 2, 9], "a")
    assert memory.followers((1, 2), "a", ALL) == [9]


def test_ten_million_tokens_take_some_hundred_megabytes() -> None:
    memory = ResponseCache(10_000_000)
    assert memory.num_bytes / 10_000_000 < 50
