"""The choice of a level of drafting: it is used where its rounds are faster, whatever makes them slow."""

import math
import random
from collections.abc import Callable, Iterator

import pytest

from services.drafter.level_choice import LevelChoice, SequenceRounds, TrialTurn

TOKENS = 15
Cost = Callable[[int], float]
"""Function from the number of a round to the seconds of a round with the level, by one without it."""


def rounds(choice: LevelChoice, cost: Cost, count: int, seed: int, noise: float = 0.25) -> Iterator[float]:
    """Yield the mean seconds of `count` rounds, by those without the level; each is noisy."""
    dice = random.Random(seed)
    for number in range(count):
        factor = cost(number) if choice.is_used else 1.0
        choice.record_round(choice.phase, factor * math.exp(dice.gauss(0, noise)), TOKENS)
        yield factor


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("factor", [0.5, 0.8, 1.0, 1.2, 2.0])
def test_the_choice_costs_little_beside_the_best_one(factor: float, seed: int) -> None:
    spent = sum(rounds(LevelChoice(), lambda _: factor, 4000, seed))
    assert spent <= 1.03 * 4000 * min(1.0, factor)


def test_a_level_that_does_not_pay_is_left_out_after_one_trial() -> None:
    choice = LevelChoice()
    spent = list(rounds(choice, lambda _: 1.2, 24, seed=0, noise=0.0))
    assert spent == [1.2] * 12 + [1.0] * 12
    assert not choice.is_used and choice.gain() == pytest.approx(1 / 1.2)


@pytest.mark.parametrize(("least_gain", "is_used"), [(0.0, True), (0.04, False)])
def test_a_level_below_its_least_gain_is_left_out(least_gain: float, is_used: bool) -> None:
    choice = LevelChoice(least_gain)
    list(rounds(choice, lambda _: 0.98, 24, seed=0, noise=0.0))
    assert choice.is_used is is_used


def test_trials_that_confirm_the_choice_become_rarer() -> None:
    choice = LevelChoice()
    spent = list(rounds(choice, lambda _: 1.05, 6000, seed=1, noise=0.15))
    early, late = (sum(factor > 1 for factor in part) for part in (spent[:1000], spent[5000:]))
    assert late < early / 2


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("factors", [(0.8, 1.25), (1.25, 0.8)])
def test_a_change_is_noticed(factors: tuple[float, float], seed: int) -> None:
    choice = LevelChoice()
    spent = list(rounds(choice, lambda number: factors[number >= 2000], 6000, seed))
    assert sum(spent[4000:]) <= 1.05 * 2000 * min(1.0, factors[1])


@pytest.mark.parametrize("seed", range(4))
def test_a_load_that_changes_says_nothing_about_the_level(seed: int) -> None:
    choice, dice = LevelChoice(), random.Random(seed)
    used = 0
    for number in range(6000):
        load = 1 + 15 * (number // 500 % 2)
        round_s = load * (0.85 if choice.is_used else 1.0) * math.exp(dice.gauss(0, 0.1))
        choice.record_round(choice.phase, round_s, TOKENS)
        used += choice.is_used
    assert used >= 0.9 * 6000


def spent_with(levels: list[LevelChoice], factors: list[float], count: int, seed: int) -> float:
    """Return the mean round of several levels, by that of the best combination."""
    dice, spent = random.Random(seed), 0.0
    for _ in range(count):
        used = [factor for level, factor in zip(levels, factors, strict=True) if level.is_used]
        seconds = math.prod(used)
        spent += seconds
        for level in levels:
            level.record_round(level.phase, seconds * math.exp(dice.gauss(0, 0.25)), TOKENS)
    return spent / count / math.prod(min(1.0, factor) for factor in factors)


@pytest.mark.parametrize("factors", [[0.8, 1.1], [1.1, 0.8], [0.9, 1.08], [0.8, 1.1, 1.1], [0.9, 0.9]])
def test_a_level_is_not_judged_by_what_another_one_gains(factors: list[float]) -> None:
    means = []
    for seed in range(8):
        turn = TrialTurn()
        levels = [LevelChoice(turn=turn) for _ in factors]
        means.append(spent_with(levels, factors, 4000, seed))
    assert sum(means) / len(means) <= 1.03, means


def test_rounds_that_began_in_the_turn_of_another_level_do_not_count() -> None:
    turn = TrialTurn()
    first, second = LevelChoice(turn=turn), LevelChoice(turn=turn)
    for _ in range(24):
        began = second.phase
        for level in (first, second):
            level.record_round(level.phase, 1.0, TOKENS)
    second.record_round(began, 1.0, TOKENS)
    assert second.phase == began + 1, "its turn has come"
    for _ in range(100):
        second.record_round(began, 1.0, TOKENS)
    assert second.phase == began + 1 and second.is_used


def test_a_level_without_rounds_loses_its_turn() -> None:
    turn = TrialTurn()
    silent, choice = LevelChoice(turn=turn), LevelChoice(turn=turn)
    silent.record_round(silent.phase, 1.0, TOKENS)
    began = choice.phase
    for _ in range(12):
        choice.record_round(choice.phase, 1.0, TOKENS)
    assert choice.phase == began, "it waits for its turn"
    for _ in range(100):
        choice.record_round(choice.phase, 1.0, TOKENS)
    assert choice.phase > began


def test_a_level_that_loses_its_turn_within_a_trial_goes_back_to_its_usual_state() -> None:
    turn = TrialTurn()
    rare, choice = LevelChoice(turn=turn), LevelChoice(turn=turn)
    for _ in range(12):
        rare.record_round(rare.phase, 1.0, TOKENS)
    assert not rare.is_used, "its trial has begun"
    for _ in range(50):
        choice.record_round(choice.phase, 1.0, TOKENS)
    rare.record_round(rare.phase, 1.0, TOKENS)
    assert rare.is_used
    for _ in range(30):
        choice.record_round(choice.phase, 1.0, TOKENS)
    for _ in range(1 + 12):
        rare.record_round(rare.phase, 1.0, TOKENS)
    assert not rare.is_used, "it has compared from the start, now in its trial"


def test_rounds_that_are_cut_by_a_change_or_have_no_draft_do_not_count() -> None:
    choice = LevelChoice()
    began = choice.phase
    for _ in range(12):
        choice.record_round(began, 1.0, TOKENS)
    assert not choice.is_used
    for _ in range(100):
        choice.record_round(began, 0.1, TOKENS)
        choice.record_round(choice.phase, 0.1, 0)
        choice.record_round(choice.phase, math.inf, TOKENS)
    assert not choice.is_used, "the trial still waits for its rounds"
    for _ in range(12):
        choice.record_round(choice.phase, 2.0, TOKENS)
    assert choice.is_used


def test_one_pause_of_a_client_decides_nothing() -> None:
    choice = LevelChoice()
    for _ in range(12):
        choice.record_round(choice.phase, 1.0, TOKENS)
    for number in range(12):
        choice.record_round(choice.phase, 1000.0 if number == 5 else 0.8, TOKENS)
    assert choice.gain() < 1, "a round of 1,000 s counts as one of 3 s"


def test_a_sequence_times_its_rounds_from_draft_to_draft() -> None:
    choice = LevelChoice()
    sequences = [SequenceRounds(choice) for _ in range(3)]
    for number in range(9):
        for offset, sequence in enumerate(sequences):
            sequence.record_draft(TOKENS, number * 2.0 + offset / 10)
    assert not choice.is_used, "12 rounds of three sequences end the first phase"
