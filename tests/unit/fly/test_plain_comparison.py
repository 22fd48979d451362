"""Trials of drafting and of plain decoding, on a virtual clock."""

from dataclasses import dataclass, field

import pytest

from fly.draft_length.plain_comparison import Estimate, PlainComparison
from fly.draft_length.plain_trials import Trials
from tests.support.clock import VirtualClock

SEQUENCES = 4
TOKENS = (1.0, 2.0, 3.0)
ROUNDS_S = (0.1, 0.1, 0.1)


@dataclass
class Traffic:
    """Sequences in step: a round takes `seconds[True]` without drafts, `seconds[False]` with drafts of 2."""

    clock: VirtualClock
    comparison: PlainComparison
    seconds: dict[bool, float]
    wants_plain: bool = False
    tokens: tuple[float, ...] = TOKENS
    choices: list[bool] = field(default_factory=list)

    @property
    def estimate(self) -> Estimate:
        return Estimate(self.tokens, ROUNDS_S)

    def run(self, num_rounds: int) -> None:
        for _ in range(num_rounds):
            is_plain = self.comparison.choose(self.wants_plain)
            self.choices.append(is_plain)
            self.clock.advance(self.seconds[is_plain])
            for _ in range(SEQUENCES):
                drafts = 0 if is_plain else 2
                self.comparison.record(is_plain, SEQUENCES, drafts, 1, self.seconds[is_plain], self.estimate)


def traffic(drafts_s: float, plain_s: float, wants_plain: bool = False) -> Traffic:
    clock = VirtualClock()
    comparison = PlainComparison(Trials(clock), clock)
    return Traffic(clock, comparison, {False: drafts_s, True: plain_s}, wants_plain)


@pytest.mark.parametrize("wants_plain", [False, True])
@pytest.mark.parametrize(("drafts_s", "plain_s"), [(0.06, 0.01), (0.03, 0.02), (0.03, 0.01)])
def test_a_trial_measures_what_drafts_gain(wants_plain: bool, drafts_s: float, plain_s: float) -> None:
    running = traffic(drafts_s, plain_s, wants_plain)
    assert running.comparison.gain(running.estimate) is None
    running.run(100)
    assert {*running.choices} == {False, True}, "the usual rounds, and a trial"
    gain = running.comparison.gain(running.estimate)
    assert gain == pytest.approx(TOKENS[2] / drafts_s * plain_s, rel=0.02)


def test_the_gain_follows_what_drafts_are_worth() -> None:
    running = traffic(drafts_s=0.03, plain_s=0.02)
    running.run(100)
    assert running.comparison.gain(Estimate((1.0, 1.5, 1.5), ROUNDS_S)) == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize(("drafts_s", "plain_s"), [(0.03, 0.03), (0.03, 0.01), (0.1, 0.01)])
def test_trials_lose_little(drafts_s: float, plain_s: float) -> None:
    gain = TOKENS[2] / drafts_s * plain_s
    running = traffic(drafts_s, plain_s, wants_plain=gain < 1)
    running.run(20_000)
    trials = running.choices.count(gain >= 1)
    usual_s = running.seconds[gain < 1]
    assert 0 < trials * running.seconds[gain >= 1] < 0.03 * len(running.choices) * usual_s


def test_a_pause_is_no_rest_from_trials() -> None:
    running = traffic(drafts_s=0.03, plain_s=0.03)
    running.run(2000)
    before = running.choices.count(True)
    for _ in range(20):
        running.clock.advance(600.0)
        running.run(20)
    assert running.choices.count(True) - before < 20, (
        "rounds took 12 s of more than 3 hours: one trial at most"
    )


def test_results_from_before_a_large_change_are_forgotten() -> None:
    running = traffic(drafts_s=0.03, plain_s=0.01)
    running.run(5000)
    running.tokens, running.seconds = (1.0, 4.0, 9.0), {False: 0.02, True: 0.01}
    running.run(5000)
    assert running.comparison.gain(running.estimate) == pytest.approx(4.5, rel=0.02)


def test_a_trial_without_a_result_is_not_repeated_soon() -> None:
    running = traffic(drafts_s=0.03, plain_s=0.03)
    while not running.choices or running.choices[-1] is False:
        running.run(1)
    running.clock.advance(5.0)
    begun = len(running.choices)
    running.run(3000)
    assert not any(running.choices[begun:]), "90 s later"
    running.run(2000)
    assert any(running.choices[begun:])


def test_a_lone_sequence_has_no_trial() -> None:
    clock = VirtualClock()
    comparison = PlainComparison(Trials(clock), clock)
    for _ in range(500):
        assert comparison.choose(False) is False
        clock.advance(0.03)
        comparison.record(False, 1, 2, 1, 0.03, Estimate(TOKENS, ROUNDS_S))


def test_all_comparisons_of_a_router_take_part_in_a_trial() -> None:
    clock = VirtualClock()
    trials = Trials(clock)
    one, other = PlainComparison(trials, clock), PlainComparison(trials, clock)
    assert trials.try_begin(is_plain=True)
    assert one.choose(False) is True and other.choose(False) is True
    assert not trials.try_begin(is_plain=False), "one at a time"
    clock.advance(4.5)
    assert one.choose(False) is False and other.choose(True) is True, "it ends by itself"
    assert not trials.try_begin(is_plain=True), "a rest comes first"


def test_a_sequence_that_differs_much_has_its_own_gain() -> None:
    running = traffic(drafts_s=0.03, plain_s=0.01)
    running.run(100)
    usual = [running.comparison.gain(running.estimate) for _ in range(20)][-1]
    slightly = running.comparison.gain(Estimate((1.0, 1.8, 2.7), ROUNDS_S))
    much = running.comparison.gain(Estimate((1.0, 1.2, 1.2), ROUNDS_S))
    assert usual is not None and slightly == pytest.approx(usual, rel=0.06)
    assert much == pytest.approx(0.4 * usual, rel=0.1)
