"""The scenario `acceleration`: the order of measuring, its figures, its goals, its report."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from benchmarks.harness.load import interleave
from benchmarks.harness.machine import this_machine
from benchmarks.harness.report import make_rows
from benchmarks.harness.runs import FIGURES, Run, Runs, compare, measure_settings
from benchmarks.scenarios.acceleration import Plan
from benchmarks.scenarios.acceleration.measure import MEASURES, edited
from benchmarks.scenarios.acceleration.plan import ahead_name, grid
from benchmarks.scenarios.acceleration.predictions import CHANGED, SAME, UNRELATED, WITHOUT, predictions
from benchmarks.scenarios.acceleration.report import TITLES, make_goals, make_report
from flyserve.core.response import Statistics

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
        assert PROMPTS[number] == tuple(prompt[::-1] if "warm-up" in cache_salt else prompt)
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
    assert (found.draft_ms, found.verify_ms) == (pytest.approx(1.0), pytest.approx(2.0))
    assert found.predicted is None and found.forced_share is None and found.same == 1.0


def results(suffix_s: float = 0.5) -> dict[str, Runs]:
    def of(seconds: float, again_s: float, forwards: int = 100) -> list[Run]:
        return [
            run(p, again_s if r else seconds, r, drafter_forwards=forwards)
            for r in range(2)
            for p in range(3)
        ]

    demo = {name: of(1.0, 1.0) for name in grid(())[1]} | {"suffix": of(suffix_s, 0.5, 40)}
    speeds = {4: (1.5, 1.4), 8: (1.0, 0.8)}
    ahead = {
        ahead_name(k, on): of(times[on], times[on]) for k, times in speeds.items() for on in (False, True)
    }
    return {"demo": demo, "draft-ahead": ahead}


def test_every_goal_of_a_measured_part_is_compared_with_its_measurement() -> None:
    forwards, demo, again, ahead = make_goals(results())
    assert forwards.measured.value == 0.4 and forwards.is_met and not forwards.is_least
    assert demo.measured.value == again.measured.value == 2.0 and "again" in again.name
    assert ahead.measured.value == pytest.approx(1.25), "drafts of 8: 1.0 s and 0.8 s"
    missed = [goal.verdict for goal in make_goals(results(suffix_s=1.05))]
    assert missed == ["met", "missed", "met", "met"]


def test_the_report_holds_every_figure(tmp_path: Path) -> None:
    found, machine = results(), this_machine()
    text = make_report(machine, Plan(), found).write(tmp_path, tmp_path).read_text(encoding="utf-8")
    assert "| suffix | 200 | 2.00x | 2.00 to 2.00 | 10.00 | 100% | 100% | 15.0 | 0.40 |" in text
    assert "**The demo pair, the first time**" in text and "**The demo pair, again**" in text
    assert f"commit {machine.commit}, {machine.date}, on {machine.cpu}" in text.splitlines()[0]
    data = json.loads((tmp_path / "acceleration.json").read_text())
    assert len(data["runs"]["demo"]["suffix"]) == 6 and set(TITLES) == set(MEASURES)
    assert all((tmp_path / f"acceleration-{part}.svg").is_file() for part in found)


def test_a_loop_asks_with_another_number() -> None:
    assert edited("Karl has 7 books and 12 pens", 2) == "Karl has 9 books and 12 pens"
    assert edited("no number", 2) == "no number"


def test_predictions_differ_from_the_responses_as_they_say() -> None:
    responses = ["Karl has 7 books and wins 12 more", "He counts them", ""]
    found = predictions(responses)
    assert list(found) == [WITHOUT, CHANGED, UNRELATED, SAME] and found[SAME] == responses
    assert found[WITHOUT] == ["", "", ""] and found[UNRELATED] == [*responses[1:], responses[0]]
    words = [text.split(" ") for text in (responses[0], found[CHANGED][0])]
    others = [(old, new) for old, new in zip(*words, strict=True) if old != new]
    assert len(others) == 3 and sum(new.isdigit() for _, new in others) == 1
    assert found[CHANGED][2] == "" and predictions(responses) == found
