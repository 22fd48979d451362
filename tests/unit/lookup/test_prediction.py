"""Predicted responses: drafts from them against responses that follow them, leave them, or ignore them."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.sequence import common_length
from services.lookup.index import prediction as prediction_module
from services.lookup.index.prediction import PredictionLookup

PROMPT = [900, 901, 902]
MOST = 8
LINES = [number if number % 8 else 0 for number in range(1, 3001)]
"""A text in which every eighth token is the same, such as a line break, and the others occur once each."""
words_st = st.lists(st.integers(0, 3), max_size=40)

Round = tuple[tuple[int, ...], int]
"""A draft, and how many of its tokens were accepted."""


def rounds_of(lookup: PredictionLookup, response: Sequence[int], start: int = 0) -> Iterator[Round]:
    """Yield the rounds of a response that no other drafter helps."""
    position = start
    while position < len(response):
        draft = lookup.propose([*PROMPT, *response[:position]], MOST)
        matched = common_length(draft, response[position:])
        if draft:
            lookup.record(matched)
        yield draft, matched
        position += matched + 1


def run(prediction: Sequence[int], response: Sequence[int], start: int = 0) -> tuple[int, int, int]:
    """Return the rounds, wrong drafts and accepted tokens of a response."""
    rounds = list(rounds_of(PredictionLookup(prediction, len(PROMPT)), response, start))
    assert all(len(draft) <= MOST for draft, _ in rounds)
    wrong = sum(bool(draft) and not matched for draft, matched in rounds)
    return len(rounds), wrong, sum(matched for _, matched in rounds)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60))
def test_a_right_prediction_is_accepted_whole(response: list[int]) -> None:
    rounds, wrong, accepted = run(response, response)
    assert (rounds, wrong) == (-(-len(response) // (MOST + 1)), 0)
    assert accepted == len(response) - len(response) // (MOST + 1)


@given(words_st, words_st, st.integers(0, 40))
def test_no_prediction_stops_a_response(prediction: list[int], response: list[int], start: int) -> None:
    rounds, wrong, accepted = run(prediction, response, min(start, len(response)))
    assert wrong <= rounds and rounds + accepted >= len(response) - start


@given(st.lists(st.integers(0, 50), max_size=60), st.lists(st.integers(60, 99), max_size=60))
def test_an_unrelated_prediction_costs_one_wrong_draft(prediction: list[int], response: list[int]) -> None:
    _, wrong, accepted = run(prediction, response)
    assert wrong <= 1 and not accepted


@given(st.integers(5, 30), st.integers(0, 6), st.integers(0, 6))
def test_it_is_followed_again_after_a_change(before: int, removed: int, added: int) -> None:
    prediction = list(range(80))
    response = [*prediction[:before], *range(100, 100 + added), *prediction[before + removed :]]
    rounds, wrong, accepted = run(prediction, response)
    # The change, and the token before the prediction is found again, take a round each.
    assert wrong <= 2 and rounds <= len(response) // (MOST + 1) + added + 4
    assert accepted >= len(response) - rounds


def test_a_common_word_misleads_it_only_for_a_moment() -> None:
    prediction = [*range(10), 50, 20, 21, 22, 50, 30, 31, 32, 33, 34, 35, 36]
    response = [*range(10), 50, 77, 50, 30, 31, 32, 33, 34, 35, 36]
    _, wrong, accepted = run(prediction, response)
    assert wrong <= 2 and accepted >= 14


def test_a_moved_part_is_found_by_several_tokens() -> None:
    first, second = list(range(30)), list(range(40, 80))
    _, wrong, accepted = run([*first, *second], [*second, *first])
    assert wrong <= 3 and accepted > 45


def test_it_follows_a_sequence_that_is_rolled_back() -> None:
    prediction = list(range(40))
    lookup = PredictionLookup(prediction, len(PROMPT))
    assert lookup.propose(PROMPT, 4) == (0, 1, 2, 3)
    lookup.record(4)
    assert lookup.propose([*PROMPT, *range(9)], 4) == (9, 10, 11, 12)
    lookup.record(4)
    assert lookup.propose([*PROMPT, *range(5)], 4) == (5, 6, 7, 8)
    assert lookup.propose(PROMPT, 4) == (0, 1, 2, 3)


def test_a_resumed_response_is_found_in_it() -> None:
    prediction = list(range(40))
    lookup = PredictionLookup(prediction, len(PROMPT))
    assert lookup.propose([*PROMPT, *range(17)], 4) == (17, 18, 19, 20)
    lookup = PredictionLookup(prediction, len(PROMPT))
    assert lookup.propose([*PROMPT, 99, 98, *range(17)], 4) == (17, 18, 19, 20)


def test_there_is_nothing_after_its_end() -> None:
    lookup = PredictionLookup(range(3), len(PROMPT))
    assert lookup.propose([*PROMPT, 0, 1, 2], 4) == ()
    assert PredictionLookup((), len(PROMPT)).propose(PROMPT, 4) == ()


@given(
    st.lists(st.integers(0, 2), max_size=30),
    st.lists(st.integers(0, 2), min_size=1, max_size=30),
    st.integers(-10, 50),
)
def test_the_longest_match_is_found_and_of_equal_ones_the_nearest(
    prediction: list[int], response: list[int], expected: int
) -> None:
    found = [
        (matched, -abs(position - expected), position)
        for position in range(1, len(prediction) + 1)
        if (matched := common_length(prediction[:position][::-1], response[::-1][:16])) >= 3
    ]
    lookup = PredictionLookup(prediction, len(PROMPT))
    assert lookup._search([*PROMPT, *response], expected) == (max(found)[2] if found else None)


def rounds_of_lines(response: Sequence[int], max_compared: int | None = None) -> list[Round]:
    """Return the rounds of a response that `LINES` predict."""
    with pytest.MonkeyPatch.context() as patch:
        if max_compared is not None:
            patch.setattr(prediction_module, "_MAX_COMPARED", max_compared)
        return list(rounds_of(PredictionLookup(LINES, len(PROMPT)), response))


@pytest.mark.parametrize(("removed", "added"), [(3, 5), (60, 60), (160, 160)])
@pytest.mark.parametrize("start", range(1200, 1208))
def test_three_changes_are_followed_as_if_all_occurrences_were_compared(
    removed: int, added: int, start: int
) -> None:
    replaced, new = range(10_000, 10_020), [at if at % 8 else 0 for at in range(20_000, 20_000 + added)]
    middle = [*LINES[520:start], *LINES[start + removed : 2000]]
    response = [*LINES[:500], *replaced, *middle, *new, *LINES[2000:]]
    rounds = rounds_of_lines(response)
    assert rounds == rounds_of_lines(response, max_compared=len(LINES))
    assert sum(matched for _, matched in rounds) > 0.75 * len(response)


@pytest.mark.parametrize("stop", range(1500, 1508))
def test_a_place_far_away_is_found_by_a_rarer_token(stop: int) -> None:
    response = [*LINES[:500], *LINES[stop:]]
    rounds = rounds_of_lines(response)
    assert len(rounds) <= len(rounds_of_lines(response, max_compared=len(LINES))) + 1
    assert sum(matched for _, matched in rounds) > 0.8 * len(response)


class CountingLookup(PredictionLookup):
    """Counts the places that are compared."""

    num_compared = 0

    def _num_matched(self, ids: Sequence[int], position: int) -> int:
        self.num_compared += 1
        return super()._num_matched(ids, position)


def test_a_prediction_of_one_token_costs_little_in_every_round() -> None:
    lookup, counts = CountingLookup([7] * 9000, len(PROMPT)), [0]
    for _ in rounds_of(lookup, [7, 8] * 600):
        counts.append(lookup.num_compared)
    each = [later - earlier for earlier, later in pairwise(counts)]
    assert len(each) > 1000
    assert max(each) == 1 + 2 * prediction_module._MAX_COMPARED <= 65


def test_after_many_wrong_drafts_it_searches_no_more() -> None:
    lookup = CountingLookup(range(100), len(PROMPT))
    for _ in range(14):
        lookup.record(0)
    assert lookup.propose([*PROMPT, 99, *range(40, 60)], 4) == ()
    assert lookup.num_compared == 1
