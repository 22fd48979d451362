"""The comparison of two arms: it finds the faster one, and what it loses by trying is bounded."""

import math
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyserve.core.comparison import LOST_SHARE, Allowance, Comparison, RoundTimer, Turn

UNITS = 15
STRANGE = st.floats(-1, 1e9) | st.sampled_from([math.inf, math.nan])
Cost = Callable[[int], float]
"""Function from the number of a round to the seconds of a round with the arm on, by one without it."""


def rounds(arm: Comparison, cost: Cost, count: int, seed: int, noise: float = 0.25) -> Iterator[float]:
    """Yield the mean seconds of `count` rounds, by those with the arm off; each is noisy."""
    dice = random.Random(seed)
    for number in range(count):
        factor = cost(number) if arm.is_on else 1.0
        arm.record(arm.phase, factor * math.exp(dice.gauss(0, noise)), UNITS)
        yield factor


@pytest.mark.parametrize("factor", [0.5, 0.8, 0.95, 1.0, 1.05, 1.2, 2.0])
@pytest.mark.parametrize("noise", [0.25, 0.5])
def test_the_choice_costs_little_beside_the_better_arm(factor: float, noise: float) -> None:
    spent = [sum(rounds(Comparison(), lambda _: factor, 4000, seed, noise)) for seed in range(4)]
    assert max(spent) <= 1.05 * 4000 * min(1.0, factor)
    assert sum(spent) / 4 <= 1.025 * 4000 * min(1.0, factor)


@settings(max_examples=20)
@given(st.floats(-2, 2), st.integers(0, 9))
def test_later_trials_lose_at_most_their_share(log_factor: float, seed: int) -> None:
    factor = math.exp(log_factor)
    arm = Comparison()
    list(rounds(arm, lambda _: factor, 2000, seed, 0.05))
    spent = sum(rounds(arm, lambda _: factor, 8000, seed, 0.05))
    # One trial more may fall into these rounds than the share of them pays for.
    most = (1 + LOST_SHARE * 1.2) * 8000 * min(1.0, factor) + 12 * max(1.0, factor)
    assert spent <= most


def test_an_arm_that_does_not_pay_is_left_after_one_trial() -> None:
    arm = Comparison()
    assert list(rounds(arm, lambda _: 1.2, 36, 0, noise=0)) == [1.2] * 12 + [1.0] * 12 + [1.2] * 12
    assert not arm.is_on and arm.gain() == pytest.approx(1 / 1.2)


@pytest.mark.parametrize(("least_gain", "is_on"), [(0.0, True), (0.04, False)])
def test_an_arm_below_its_least_gain_is_left(least_gain: float, is_on: bool) -> None:
    arm = Comparison(least_gain=least_gain)
    list(rounds(arm, lambda _: 0.98, 36, seed=0, noise=0))
    assert arm.is_on is is_on


@pytest.mark.parametrize("factors", [(0.8, 1.25), (1.25, 0.8), (0.95, 1.1)])
def test_a_change_is_followed(factors: tuple[float, float]) -> None:
    for seed in range(4):
        spent = list(rounds(Comparison(), lambda number: factors[number >= 2000], 6000, seed))
        assert sum(spent[4000:]) <= 1.05 * 2000 * min(1.0, factors[1])


@pytest.mark.parametrize("change_at", [6, 12, 18, 24, 30])
def test_a_load_that_changes_in_or_after_a_trial_says_nothing(change_at: int) -> None:
    arm = Comparison()
    for number in range(36):
        load = 16.0 if number >= change_at else 1.0
        arm.record(arm.phase, load * (0.85 if arm.is_on else 1.0), UNITS)
    assert arm.is_on and (arm.log_gain.weight == 0 or arm.gain() > 1)


def test_a_load_that_changes_often_hides_no_gain() -> None:
    arm, dice, used = Comparison(), random.Random(0), 0
    for number in range(6000):
        load = 1 + 15 * (number // 500 % 2)
        used += arm.is_on
        arm.record(arm.phase, load * (0.85 if arm.is_on else 1.0) * math.exp(dice.gauss(0, 0.1)), UNITS)
    assert used >= 0.95 * 6000


@pytest.mark.parametrize("pause_at", range(36))
def test_one_pause_decides_nothing(pause_at: int) -> None:
    arm = Comparison()
    for number in range(36):
        arm.record(arm.phase, 1000.0 if number == pause_at and number else 0.7 if arm.is_on else 1.0, UNITS)
    assert arm.is_on


@pytest.mark.parametrize("factors", [[0.8, 1.1], [1.1, 0.8], [0.9, 1.08], [0.8, 1.1, 1.1], [0.9, 0.9]])
def test_arms_that_take_turns_are_not_judged_by_each_other(factors: list[float]) -> None:
    means = []
    for seed in range(4):
        turn, dice, spent = Turn(), random.Random(seed), 0.0
        arms = [Comparison(turn) for _ in factors]
        for _ in range(4000):
            before = [arm.is_on for arm in arms]
            seconds = math.prod(factor for arm, factor in zip(arms, factors, strict=True) if arm.is_on)
            spent, phase = spent + seconds, turn.phase
            for arm in arms:
                arm.record(phase, seconds * math.exp(dice.gauss(0, 0.25)), UNITS)
            changed = [was is not arm.is_on for was, arm in zip(before, arms, strict=True)]
            assert sum(changed) <= 1, "no two arms change at once"
        means.append(spent / 4000 / math.prod(min(1.0, factor) for factor in factors))
    assert sum(means) / len(means) <= 1.03, means


def test_a_trial_without_rounds_of_its_own_ends() -> None:
    turn = Turn()
    silent, other = Comparison(turn), Comparison(turn)
    while turn.trial is None:
        silent.record(turn.phase, 1.0, UNITS)
    assert not silent.is_on
    for _ in range(60):
        other.record(turn.phase, 1.0, UNITS)
    assert turn.trial is not silent and silent.is_on


def test_rounds_of_another_phase_and_those_without_work_do_not_count() -> None:
    arm = Comparison()
    began = arm.phase
    for _ in range(12):
        arm.record(began, 1.0, UNITS)
    assert not arm.is_on
    for seconds, units in [(1.0, 0.0), (math.inf, UNITS), (math.nan, UNITS), (-1.0, UNITS)] * 10:
        arm.record(arm.phase, seconds, units)
        arm.record(began, 1.0, UNITS)
    assert not arm.is_on, "the trial still waits for its rounds"


@given(st.lists(st.tuples(STRANGE, STRANGE), max_size=200))
def test_no_round_is_too_strange(strange: list[tuple[float, float]]) -> None:
    arm = Comparison()
    for seconds, units in strange:
        arm.record(arm.phase, seconds, units)
    assert math.isfinite(arm.log_gain.value)


def test_sequences_time_their_rounds_from_end_to_end() -> None:
    arm = Comparison()
    timers = [RoundTimer(arm) for _ in range(3)]
    for number in range(9):
        for offset, timer in enumerate(timers):
            timer.record(UNITS, number * 2.0 + offset / 10)
    assert not arm.is_on, "12 rounds of three sequences are enough for a trial"


def test_an_allowance_is_a_share_of_the_time_and_is_not_saved() -> None:
    allowance = Allowance()
    allowance.earn(1e6)
    assert allowance.seconds == 0
    allowance.charge(0.03)
    allowance.earn(0.5 * 0.03 / LOST_SHARE)
    assert allowance.seconds == pytest.approx(-0.015)
