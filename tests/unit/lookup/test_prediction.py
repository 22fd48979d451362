"""Predicted responses: drafts from them against responses that follow them, leave them, or ignore them."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.sequence import common_length
from services.lookup.index.prediction import PredictionLookup

PROMPT = [900, 901, 902]
MOST = 8
words_st = st.lists(st.integers(0, 3), max_size=40)


def run(prediction: Sequence[int], response: Sequence[int], start: int = 0) -> tuple[int, int, int]:
    """Return the rounds, wrong drafts and accepted tokens of a response that no other drafter helps."""
    lookup, position = PredictionLookup(prediction, len(PROMPT)), start
    rounds = wrong = accepted = 0
    while position < len(response):
        draft = lookup.propose([*PROMPT, *response[:position]], MOST)
        assert len(draft) <= MOST
        if draft:
            matched = common_length(draft, response[position:])
            lookup.record(matched)
            wrong += not matched
            accepted += matched
            position += matched
        position += 1
        rounds += 1
    return rounds, wrong, accepted


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
