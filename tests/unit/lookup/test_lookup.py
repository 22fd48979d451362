"""Prompt look-up against a brute-force search."""

from hypothesis import given
from hypothesis import strategies as st

from services.lookup.index.ngram import PromptLookup, supported_length


def brute_force(ids: list[int], min_ngram: int, max_ngram: int, count: int) -> tuple[int, ...]:
    for order in range(max_ngram, min_ngram - 1, -1):
        for start in range(len(ids) - 1, order - 1, -1):
            if len(ids) >= order and ids[start - order : start] == ids[len(ids) - order :]:
                copied = list(ids)
                for offset in range(count):
                    copied.append(copied[start + offset])
                return tuple(copied[len(ids) : len(ids) + _supported(ids, start, order)])
    return ()


def _supported(ids: list[int], start: int, order: int) -> int:
    """Return the length that the match at `start` supports, by the definitions of its parts."""
    matched = next((n for n in range(start) if ids[start - 1 - n] != ids[-1 - n]), start)
    ends = [end for end in range(order, len(ids)) if ids[end - order : end] == ids[len(ids) - order :]]
    recent = [ids[end] for end in ends[-8:]]
    return supported_length(matched, recent.count(recent[-1]) / len(recent))


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
        assert lookup.propose(count) == brute_force(ids, 1, 3, count)


def test_without_a_match_or_room_there_is_no_draft() -> None:
    lookup = PromptLookup()
    assert lookup.propose(5) == ()
    lookup.update([1, 2, 3], 0)
    assert lookup.propose(5) == ()
    lookup.update([1, 2, 3, 1, 2], 3)
    assert lookup.propose(0) == ()
    assert lookup.propose(1) == (3,)


def draft(ids: list[int], count: int = 100) -> tuple[int, ...]:
    lookup = PromptLookup(2, 3)
    lookup.update(ids, 0)
    return lookup.propose(count)


def test_a_draft_is_as_long_as_its_match_supports() -> None:
    text = list(range(100, 150))
    found = {match: draft([*text, 1, *text[:match]]) for match in (2, 3, 10, 20)}
    assert {match: len(tokens) for match, tokens in found.items()} == {2: 4, 3: 6, 10: 20, 20: 40}
    assert found[20][:10] == tuple(text[20:30])


def test_occurrences_that_disagree_support_less() -> None:
    alike, varied = [1, 2, 3] * 3 + [9, 1, 2], [1, 2, 3, 1, 2, 4, 1, 2, 5, 9, 1, 2]
    assert len(draft(alike)) == 4 and len(draft(varied)) == 1
    endings = [token for last in range(10, 18) for token in (1, 2, last)]
    assert draft([*endings, 9, 1, 2]) == ()


@given(st.integers(0, 64), st.floats(0, 1), st.integers(0, 8), st.floats(0, 1))
def test_support_grows_with_length_and_agreement(
    match: int, agreement: float, more: int, other: float
) -> None:
    least, most = sorted((agreement, other))
    assert 0 <= supported_length(match, least) <= supported_length(match + more, most) <= 2 * (match + more)
