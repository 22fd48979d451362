"""Likely outcomes: their ranking, their rates, and the number that is worth a branch."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fly.request import SamplingParams
from services.drafter.outcomes import Likely, Outcome, OutcomeRates, Round, Row, make_row, steps

GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=1.0, seed=3)
ROWS = st.lists(
    st.lists(st.floats(0, 20), min_size=0, max_size=4).map(
        lambda gaps: Row(tuple(range(len(gaps) + 1)), (0.0, *sorted(gaps)))
    ),
    min_size=1,
    max_size=8,
)


@given(ROWS, st.data())
def test_probabilities_are_those_of_different_outcomes(rows: list[Row], data: st.DataObject) -> None:
    rates, round_ = OutcomeRates(), Round(len(rows), tuple(rows))
    for _ in range(data.draw(st.integers(0, 20))):
        kept = data.draw(st.integers(0, len(rows)))
        rates.record(round_.ended(kept, data.draw(st.integers(0, 5))))
    likely = rates.likely(round_)
    assert 0 <= likely.whole <= 1
    assert all(0 <= probability <= 1 for _, probability in likely.outcomes)
    assert [p for _, p in likely.outcomes] == sorted((p for _, p in likely.outcomes), reverse=True)
    drafts = {(step.kept, step.row.ids[0]) for step in steps(round_)}
    assert not drafts & {tuple(outcome) for outcome, _ in likely.outcomes}, "no draft corrects itself"


def test_rates_follow_what_happens_and_forget() -> None:
    row = Row((1, 2, 3), (0.0, 0.2, 0.3))
    rates, round_ = OutcomeRates(), Round(1, (row,))
    for token in (2, 3):
        for _ in range(20_000):
            rates.record(round_.ended(0, token))
    assert rates.likely(round_).outcomes[0][0] == Outcome(0, 3)
    assert rates.likely(round_).whole < 0.01


@given(st.lists(st.floats(0.001, 1), max_size=8), st.floats(0, 1), st.floats(0, 2))
def test_an_expensive_row_has_fewer_branches(weights: list[float], whole: float, cost: float) -> None:
    total = sum(weights) or 1.0
    outcomes = sorted((weight / total * (1 - whole) for weight in weights), reverse=True)
    likely = Likely(tuple((Outcome(index, 0), p) for index, p in enumerate(outcomes)), whole)
    free, paid = likely.worth(8, 0.0), likely.worth(8, cost)
    assert paid == free[: len(paid)]
    assert likely.worth(2, 0.0) == free[:2]


def test_a_branch_that_costs_more_than_it_gains_is_left_out() -> None:
    likely = Likely(((Outcome(1, 5), 0.3), (Outcome(2, 5), 0.05), (Outcome(3, 5), 0.001)), 0.5)
    assert likely.worth(4, 0.0) == [Outcome(1, 5), Outcome(2, 5)], "the last is too unlikely at any cost"
    assert likely.worth(4, 0.1) == [Outcome(1, 5)]
    assert likely.worth(4, 1.0) == []


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_a_row_begins_with_the_choice_and_orders_the_others(sampling: SamplingParams) -> None:
    ranked = [(7, -0.5), (8, -1.0), (9, -3.0), (10, -4.0)]
    row = make_row(8, ranked, sampling, position=5, most=3)
    assert row.ids[0] == 8 and len(row.ids) == 3 and set(row.ids) < {7, 8, 9, 10}
    assert row.gaps[0] == 0 <= row.gaps[1] <= row.gaps[2] < math.inf
    assert (row.ids == (8, 7, 9)) or sampling is SAMPLED
    assert make_row(8, (), sampling, 5, 3) == Row((8,), (0.0,))
