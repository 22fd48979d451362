"""The scenario `acceleration`: the order of measuring, its figures, its goals, its report."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from benchmarks.harness.command import Parts
from benchmarks.harness.load import interleave
from benchmarks.harness.report import make_rows
from benchmarks.harness.runs import FIGURES, Run, Runs, compare, measure_settings
from benchmarks.scenarios.acceleration import Plan
from benchmarks.scenarios.acceleration.passes import (
    FIRST,
    FIRST_ALONE,
    SECOND,
    SECOND_ALONE,
    measure_passes,
    num_pass_prompts,
)
from benchmarks.scenarios.acceleration.plan import (
    AHEAD,
    DEMO,
    LOOKUP,
    PASSES,
    SUFFIX,
    ahead_name,
    grid,
    lookup_settings,
)
from benchmarks.scenarios.acceleration.predictions import CHANGED, SAME, UNRELATED, WITHOUT, predictions
from benchmarks.scenarios.acceleration.report import make_goals
from fly.response import Statistics

PROMPTS = ((1, 2), (3,), (4, 5))


def run(prompt: int, seconds: float, repetition: int = 0, **figures: float) -> Run:
    made = {"emitted": 100, "rounds": 10, "draft_rounds": 10, "drafted": 150, "tau": 10.0, **figures}
    return Run(prompt, repetition, seconds, Statistics(**made))  # type: ignore[arg-type]


class Remembering:
    """A deployment that records its requests and their salts, in one list for all."""

    def __init__(self, name: str, asked: list[tuple[str, int, int, str]]) -> None:
        self._name = name
        self._asked = asked

    def __call__(self, prompt: Sequence[int], number: int, repetition: int, cache_salt: str) -> Run:
        assert PROMPTS[number] == tuple(prompt)
        self._asked.append((self._name, number, repetition, cache_salt))
        return run(number, 1.0, repetition)


@pytest.mark.parametrize("is_remembered", [True, False])
def test_settings_take_turns_and_none_profits_from_what_another_was_asked(is_remembered: bool) -> None:
    asked: list[tuple[str, int, int, str]] = []
    steps: list[None] = []
    sends = {name: Remembering(name, asked) for name in "ab"}
    in_turn = partial(interleave, advance=lambda: steps.append(None))
    runs = measure_settings({**sends}, PROMPTS, 2, is_remembered, in_turn)
    measured = asked[2 * 2 :]
    assert len(steps) == len(asked) and {each[0] for each in asked[:2]} == {"a", "b"}
    for found in runs.values():
        assert [(r.prompt, r.repetition) for r in found] == [(p, r) for r in range(2) for p in range(3)]
    salts = {name: [salt for who, _, _, salt in measured if who == name] for name in "ab"}
    assert not set(salts["a"]) & set(salts["b"]) and not {salt for *_, salt in asked[:4]} & {*salts["a"]}
    assert len(set(salts["a"])) == (1 if is_remembered else 2 * len(PROMPTS))


def test_a_second_pass_follows_all_of_its_first_and_is_measured_next_to_the_next_first() -> None:
    asked: list[tuple[str, int, int, str]] = []
    steps: list[None] = []
    helped, alone = Remembering("helped", asked), Remembering("alone", asked)
    runs = measure_passes(helped, alone, PROMPTS, 1, 2, lambda: steps.append(None))
    assert len(steps) == num_pass_prompts(3, 2) == 9
    pairs = [(r.prompt, r.repetition) for r in runs[FIRST]]
    assert pairs == [(prompt, turn) for turn in (0, 1) for prompt in range(3)]
    assert [(r.prompt, r.repetition) for r in runs[SECOND]] == pairs
    assert len(runs[FIRST_ALONE]) == len(runs[SECOND_ALONE]) == 2
    for salt in "01":
        of_salt = [number for who, number, _, own in asked if who == "helped" and own.endswith(f"/{salt}")]
        assert of_salt == [0, 1, 2, 0, 1, 2], "every second pass has a memory that was empty before the first"


def test_figures_are_of_totals_and_intervals_over_the_prompts() -> None:
    base = [run(p, 4.0, r) for r in range(2) for p in range(3)]
    varied = [run(p, 4.0 / (p + 1), r) for r in range(2) for p in range(3)]
    ratio = compare(varied, base)
    assert ratio.value == pytest.approx(18 / 11) and 1.0 <= ratio.low < ratio.value < ratio.high <= 3.01
    helped = [
        run(0, 1.0, drafter_forwards=50, sub_drafter_tokens=75, draft_s=0.2),
        run(1, 3.0, drafter_forwards=30, drafted_ahead=30, dropped_ahead=10, verify_s=0.4),
    ]
    (found,) = make_rows(FIGURES, [("on", helped, [run(0, 2.0), run(1, 6.0)])])
    assert (found.ratio.value, found.tokens_per_s, found.tau) == (2.0, 50.0, 10.0)
    assert (found.forwards_per_token, found.supplied_share, found.ahead_share) == (0.4, 0.25, 0.75)
    assert (found.draft_ms, found.verify_ms) == (pytest.approx(10.0), pytest.approx(20.0))
    assert found.predicted is None and found.forced_share is None


def test_runs_are_the_same_after_they_were_kept(tmp_path: Path) -> None:
    runs = {"a": [run(0, 1.0), run(1, 2.0, 3, tau=4.5)]}
    assert Parts(tmp_path, "plan", resumes=False).measure("part", Runs, lambda: runs) == runs


def results(suffix_s: float = 0.5) -> dict[str, Runs]:
    def of(seconds: float) -> list[Run]:
        return [run(p, seconds, drafter_forwards=100) for p in range(3)]

    demo = {name: of(1.0) for name in grid(())[1]} | {
        SUFFIX: [run(p, suffix_s, drafter_forwards=40) for p in range(3)]
    }
    passes = {FIRST: of(1.0), SECOND: of(0.5), FIRST_ALONE: of(1.0), SECOND_ALONE: of(0.8)}
    speeds = {4: (1.5, 1.4), 6: (1.1, 0.9), 8: (1.0, 0.8), 10: (1.2, 0.85)}
    ahead = {ahead_name(k, on): of(times[on]) for k, times in speeds.items() for on in (False, True)}
    looked = {
        name: [run(p, 1.0 if name == "plain" else 1.0 / (1 + 2 * r), r) for r in range(2) for p in range(3)]
        for name in lookup_settings()
    }
    return {DEMO: demo, PASSES: passes, AHEAD: ahead, LOOKUP: looked}


def test_every_goal_of_a_measured_part_is_compared_with_its_measurement() -> None:
    forwards, demo, passes, first, second, ahead = make_goals(Plan(), results())
    assert forwards.measured.value == 0.4 and forwards.is_met and not forwards.is_least
    assert demo.measured.value == passes.measured.value == 2.0
    assert (first.measured.value, second.measured.value) == (1.0, 3.0) and "second pass" in second.name
    assert ahead.measured.value == pytest.approx(1.25), "the best of each side: 8 in 1.0 s, 8 in 0.8 s"
    missed = [goal.verdict for goal in make_goals(Plan(), results(suffix_s=1.05))]
    assert missed == ["met", "missed", "met", "missed", "met", "met"]


def test_predictions_differ_from_the_responses_as_they_say() -> None:
    responses = ["Karl has 7 books and wins 12 more", "He counts them", ""]
    found = predictions(responses)
    assert list(found) == [WITHOUT, CHANGED, UNRELATED, SAME] and found[SAME] == responses
    assert found[WITHOUT] == ["", "", ""] and found[UNRELATED] == [*responses[1:], responses[0]]
    words = [text.split(" ") for text in (responses[0], found[CHANGED][0])]
    others = [(old, new) for old, new in zip(*words, strict=True) if old != new]
    assert len(others) == 3 and sum(new.isdigit() for _, new in others) == 1
    assert found[CHANGED][2] == "" and predictions(responses) == found
