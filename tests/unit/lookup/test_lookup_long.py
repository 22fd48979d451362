"""Look-up in long text: equal to a brute-force search, bounded work per call, bounded memory per process."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.lookup.index import ngram as ngram_module
from services.lookup.index.budget import IndexBudget
from services.lookup.index.ngram import NgramIndex
from services.lookup.index.sorted_ngrams import SortedNgrams
from services.lookup.index.suffix import Snippets, SuffixProposer

ORDERS = (1, 2, 4)
steps_st = st.lists(st.tuples(st.integers(0, 60), st.lists(st.integers(0, 3), max_size=40)), max_size=12)


@pytest.fixture
def small() -> Iterator[None]:
    """Sizes at which short text counts as long."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"_MAX_ADDED": 6, "_MIN_RECENT": 3, "_MAX_RECENT": 9}.items():
            patch.setattr(ngram_module, name, value)
        yield


def brute_force(ids: list[int], ngram: tuple[int, ...]) -> list[int]:
    ends = range(len(ids) - 1, len(ngram) - 1, -1)
    return [ids[end] for end in ends if tuple(ids[end - len(ngram) : end]) == ngram]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps_st, st.lists(st.integers(0, 3), min_size=4, max_size=4), st.integers(1, 30))
def test_every_position_is_found_after_any_roll_back(
    small: None, steps: list[tuple[int, list[int]]], tail: list[int], limit: int
) -> None:
    index, ids = NgramIndex(ORDERS), list[int]()
    for length, appended in steps:
        index.truncate(length)
        del ids[length:]
        index.extend(appended)
        ids.extend(appended)
        assert index.tokens(0) == ids
        for order in ORDERS:
            ngram = tuple(tail[:order])
            assert index.followers(ngram, limit) == brute_force(ids, ngram)[:limit]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps_st)
def test_proposals_do_not_depend_on_the_sizes(small: None, steps: list[tuple[int, list[int]]]) -> None:
    """Compare with indexes that keep everything in dictionaries, as for short text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngram_module, "_MAX_RECENT", 1 << 30)
        patch.setattr(ngram_module, "_MAX_ADDED", 1 << 30)
        expected = _proposals(steps)
    assert _proposals(steps) == expected


def _proposals(steps: list[tuple[int, list[int]]]) -> list[tuple[int, ...]]:
    proposer, found = SuffixProposer(Snippets()), []
    for ids, unchanged in _states(steps):
        proposer.update(ids, unchanged)
        found.append(proposer.propose(5))
    return found


def _states(steps: list[tuple[int, list[int]]]) -> Iterator[tuple[list[int], int]]:
    ids = list[int]()
    for length, appended in steps:
        unchanged = min(length, len(ids))
        ids = ids[:unchanged] + appended
        yield ids, unchanged


@given(st.lists(st.integers(0, (1 << 32) - 1), max_size=60), st.data())
def test_sorted_ngrams_grow_at_both_ends(ids: list[int], data: st.DataObject) -> None:
    middle = data.draw(st.integers(0, len(ids)))
    left, right = data.draw(st.integers(0, middle)), data.draw(st.integers(middle, len(ids)))
    index = SortedNgrams((1, 3), middle)
    for start, stop in ((left, middle), (middle, right), (0, left), (right, len(ids))):
        index.add(ids, start, stop)
    dropped = data.draw(st.integers(0, len(ids)))
    index.drop(dropped)
    assert (index.start, index.stop, len(index)) == (dropped, len(ids), len(ids) - dropped)
    for order in (1, 3):
        for end in range(order, len(ids)):
            ngram = tuple(ids[end - order : end])
            same = [at for at in range(len(ids) - 1, order - 1, -1) if tuple(ids[at - order : at]) == ngram]
            assert index.positions(ngram, 100) == [at for at in same if at >= dropped]


def long_text(length: int) -> list[int]:
    """Return numbers that occur once each, so that every n-gram has one position."""
    return random.Random(0).sample(range(10 * length), length)


def test_a_long_text_is_indexed_from_its_end_in_bounded_parts() -> None:
    ids, index, found = long_text(40_000), NgramIndex((2, 3, 4, 5)), []
    index.extend(ids)
    while not found or found[-1] > 2:
        found.append(next(at for at in range(2, len(ids)) if index.followers((ids[at - 2], ids[at - 1]), 1)))
        index.extend(())
    parts = [later - earlier for earlier, later in zip(found[1:], found[:-1], strict=True)]
    assert found[0] >= len(ids) - 128 - 8192 and found[-1] == 2
    assert max(parts) <= 8192 and len(found) == 5


@pytest.mark.parametrize(("budget", "most"), [(IndexBudget(), 2000), (IndexBudget(2000), None)])
def test_beyond_the_window_or_the_budget_the_latest_tokens_replace_older_ones(
    budget: IndexBudget, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if most is not None:
        monkeypatch.setattr(ngram_module, "_MAX_NGRAMS", most)
    text, index = long_text(6000), NgramIndex((2,), budget.share())
    for start in range(0, 6000, 50):
        index.extend(text[start : start + 50])
        assert budget.num_tokens <= 2000
    assert index.followers((text[4800], text[4801]), 1) == [text[4802]]
    assert not index.followers((text[1000], text[1001]), 1)


def test_the_budget_limits_all_sequences_together_and_is_returned() -> None:
    budget, text = IndexBudget(10_000), long_text(20_000)
    shares = [budget.share() for _ in range(3)]
    indexes = [NgramIndex((2, 3, 4, 5), share) for share in shares]
    for _ in range(5):
        for index in indexes:
            index.extend(() if len(index) else text)
        assert budget.num_tokens <= 10_000
    assert [index.followers((text[-3], text[-2]), 1) for index in indexes] == [[text[-1]]] * 3, "the end"
    for share in shares:
        share.close()
        share.close()
    assert budget.num_tokens == 0 and not shares[0].take(1)


def test_a_truncation_into_a_long_text_indexes_it_again() -> None:
    text, budget = long_text(5000), IndexBudget()
    index = NgramIndex((2,), budget.share())
    index.extend(text)
    index.truncate(2000)
    index.extend(text[:3])
    assert index.followers((text[0], text[1]), 9) == [text[2], text[2]]
    assert not index.followers((text[2500], text[2501]), 1)
    assert budget.num_tokens <= 2003
