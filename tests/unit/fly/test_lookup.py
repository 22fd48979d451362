"""Prompt look-up against a brute-force search."""

from hypothesis import given
from hypothesis import strategies as st

from fly.lookup.ngram import PromptLookup, Proposal


def brute_force(ids: list[int], min_ngram: int, max_ngram: int, count: int) -> tuple[tuple[int, ...], int]:
    for order in range(max_ngram, min_ngram - 1, -1):
        for start in range(len(ids) - 1, order - 1, -1):
            if len(ids) >= order and ids[start - order : start] == ids[len(ids) - order :]:
                copied = list(ids)
                for offset in range(count):
                    copied.append(copied[start + offset])
                return tuple(copied[len(ids) :]), order
    return (), 0


steps_st = st.lists(st.tuples(st.integers(0, 12), st.lists(st.integers(0, 3), max_size=10)), max_size=10)


@given(steps_st, st.integers(1, 12))
def test_it_continues_the_latest_occurrence_of_the_longest_suffix(
    steps: list[tuple[int, list[int]]], count: int
) -> None:
    lookup, ids = PromptLookup(min_ngram=1, max_ngram=3), []
    for length, appended in steps:
        del ids[length:]
        unchanged = len(ids)
        ids.extend(appended)
        lookup.update(ids, unchanged)
        proposal = lookup.propose(count)
        assert (proposal.tokens, proposal.match_length) == brute_force(ids, 1, 3, count)


def test_without_a_match_or_room_there_is_no_proposal() -> None:
    lookup = PromptLookup()
    assert lookup.propose(5) == Proposal()
    lookup.update([1, 2, 3], 0)
    assert lookup.propose(5) == Proposal()
    lookup.update([1, 2, 3, 1, 2], 3)
    assert lookup.propose(0) == Proposal()
    assert lookup.propose(1).tokens == (3,)


def test_confidence_grows_with_agreement() -> None:
    steady, varied = PromptLookup(2, 2), PromptLookup(2, 2)
    steady.update([1, 2, 3] * 4 + [1, 2], 0)
    varied.update([1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 2], 0)
    assert varied.propose(1).confidence == 1 / 4, "1 of the 3 occurrences, and one doubt"
    assert steady.propose(1).confidence == 4 / 5
