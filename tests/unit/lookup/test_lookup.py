"""Prompt look-up against a brute-force search."""

from hypothesis import given
from hypothesis import strategies as st

from services.lookup.index.ngram import PromptLookup, Proposal, supported_length


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


def for_target(ids: list[int], count: int = 100) -> Proposal:
    lookup = PromptLookup(2, 3, for_target=True)
    lookup.update(ids, 0)
    return lookup.propose(count)


def test_a_draft_for_a_target_is_as_long_as_its_match_supports() -> None:
    text = list(range(100, 150))
    found = {match: for_target([*text, 1, *text[:match]]) for match in (2, 3, 10, 20)}
    assert {match: proposal.match_length for match, proposal in found.items()} == {m: m for m in found}
    assert [len(proposal.tokens) for proposal in found.values()] == [4, 6, 20, 40]
    assert found[20].tokens[:10] == tuple(text[20:30])


def test_occurrences_that_disagree_support_less() -> None:
    alike, varied = [1, 2, 3] * 3 + [9, 1, 2], [1, 2, 3, 1, 2, 4, 1, 2, 5, 9, 1, 2]
    assert len(for_target(alike).tokens) == 4 and len(for_target(varied).tokens) == 1
    endings = [token for last in range(10, 18) for token in (1, 2, last)]
    assert for_target([*endings, 9, 1, 2]) == Proposal()


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 12))
def test_a_draft_for_a_target_is_the_beginning_of_the_usual_one(ids: list[int], count: int) -> None:
    usual = PromptLookup(2, 3)
    usual.update(ids, 0)
    proposal, whole = for_target(ids, count), usual.propose(count)
    assert proposal.tokens == whole.tokens[: len(proposal.tokens)]
    if proposal.tokens:
        assert proposal.confidence == whole.confidence
        assert whole.match_length <= proposal.match_length
        assert ids[-proposal.match_length :] in [
            ids[start : start + proposal.match_length] for start in range(len(ids) - proposal.match_length)
        ]


@given(st.integers(0, 64), st.floats(0, 1), st.integers(0, 8), st.floats(0, 1))
def test_support_grows_with_length_and_agreement(
    match: int, agreement: float, more: int, other: float
) -> None:
    least, most = sorted((agreement, other))
    assert 0 <= supported_length(match, least) <= supported_length(match + more, most) <= 2 * (match + more)
