import io
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console

from benchmarks.aligned_pair.bigram_model import bigram_model, count_bigrams
from benchmarks.harness.command import Parts
from benchmarks.harness.load import interleave
from benchmarks.harness.machine import this_machine
from benchmarks.scenarios.acceleration import PARTS, Plan
from benchmarks.scenarios.acceleration.measure import (
    FIRST,
    FIRST_ALONE,
    SECOND,
    SECOND_ALONE,
    Run,
    measure_passes,
    measure_settings,
    num_pass_prompts,
)
from benchmarks.scenarios.acceleration.predictions import CHANGED, SAME, UNRELATED, WITHOUT, predictions
from benchmarks.scenarios.acceleration.report import (
    compare,
    make_goals,
    make_report,
    ratios_by_repetition,
    summarize,
)
from benchmarks.scenarios.acceleration.workloads import (
    AHEAD,
    BASELINE,
    DEMO,
    NON_REPEATING,
    PASSES,
    SETTINGS,
    SUFFIX,
    SubDrafting,
    ahead_name,
)
from demo.tokenizer import load_tokenizer
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


def test_every_prompt_meets_every_setting_as_often_and_the_order_rotates() -> None:
    asked: list[tuple[str, int, int, str]] = []
    steps: list[None] = []
    asks = {name: Remembering(name, asked) for name in "abc"}
    runs = measure_settings(
        {**asks}, PROMPTS[:1], 3, True, partial(interleave, advance=lambda: steps.append(None))
    )
    assert len(asked) == len(steps) == 3 * (1 + 3)
    assert ["".join(name for name, *_ in asked[at : at + 3]) for at in (3, 6, 9)] == ["abc", "bca", "cab"]
    assert {name: [(r.prompt, r.repetition) for r in found] for name, found in runs.items()} == {
        name: [(0, 0), (0, 1), (0, 2)] for name in "abc"
    }


@pytest.mark.parametrize("is_remembered", [True, False])
def test_no_setting_profits_from_what_another_was_asked(is_remembered: bool) -> None:
    asked: list[tuple[str, int, int, str]] = []
    asks = {name: Remembering(name, asked) for name in "ab"}
    measure_settings({**asks}, PROMPTS, 2, is_remembered, interleave)
    measured = asked[2 * 2 :]
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
    assert [(r.prompt, r.repetition) for r in runs[FIRST_ALONE]] == [(0, 0), (0, 1)]
    assert len(runs[SECOND_ALONE]) == 2
    for salt in "01":
        of_salt = [number for who, number, _, own in asked if who == "helped" and own.endswith(f"/{salt}")]
        assert of_salt == [0, 1, 2, 0, 1, 2], "every second pass has a memory that was empty before the first"
    next_to = [
        own[-2:] for who, number, repetition, own in asked if (who, number, repetition) == ("helped", 1, 0)
    ]
    assert set(next_to) == {"/1", "/0"}


def test_ratios_are_of_the_same_prompts_and_intervals_over_them() -> None:
    base = [run(p, 4.0, r) for r in range(2) for p in range(3)]
    varied = [run(p, 4.0 / (p + 1), r) for r in range(2) for p in range(3)]
    ratio = compare(varied, base)
    assert ratio.value == pytest.approx(18 / 11)
    assert 1.0 <= ratio.low < ratio.value < ratio.high <= 3.01
    slow = [run(p, 10.0 * (r + 1), r) for r in range(2) for p in range(3)]
    fast = [run(p, 5.0 * (r + 1), r) for r in range(2) for p in range(3)]
    spread = ratios_by_repetition(fast, slow)
    assert (spread.value, spread.least, spread.most) == (2.0, 2.0, 2.0)


def test_figures_are_of_totals() -> None:
    helped = [
        run(
            0,
            1.0,
            drafter_forwards=50,
            sub_drafter_tokens=75,
            proposals_requested=6,
            proposals_late=2,
            draft_s=0.2,
        ),
        run(
            1,
            3.0,
            drafter_forwards=30,
            drafted_ahead=30,
            dropped_ahead=10,
            verify_s=0.4,
        ),
    ]
    off, found = summarize({"off": [run(0, 2.0), run(1, 6.0)], "on": helped}, "off")
    assert (off.ratio.value, found.ratio.value, found.median_ratio) == (1.0, 2.0, 2.0)
    assert (found.tokens_per_s, found.forwards_per_token, found.supplied_share) == (50.0, 0.4, 0.25)
    assert found.proposals == {"requested": 3.0, "late": 1.0, "invalid": 0.0}
    assert off.ahead_share is None and found.ahead_share == 0.75
    assert (found.tau, found.draft_length) == (10.0, 15.0)
    assert (found.draft_ms, found.verify_ms) == (pytest.approx(10.0), pytest.approx(20.0))


def test_runs_are_the_same_after_they_were_kept(tmp_path: Path) -> None:
    runs = {"a": [run(0, 1.0), run(1, 2.0, 3, tau=4.5)]}
    assert Parts(tmp_path, "plan", resumes=False).measure("part", dict[str, list[Run]], lambda: runs) == runs


def test_the_settings_are_every_combination() -> None:
    assert len({setting.name for setting in SETTINGS}) == 4 * 2 * 2 == len(SETTINGS)
    assert SETTINGS[0] == BASELINE and BASELINE.name == "off" and SUFFIX.name == "suffix"
    assert {setting.drafting.sub_drafting for setting in SETTINGS} == set(SubDrafting)


def results(suffix_s: float = 0.5) -> dict[str, dict[str, list[Run]]]:
    def of(seconds: float, **figures: float) -> list[Run]:
        return [run(p, seconds, drafter_forwards=100, **figures) for p in range(3)]

    grid = {s.name: of(1.0) for s in SETTINGS} | {
        SUFFIX.name: [run(p, suffix_s, drafter_forwards=40) for p in range(3)]
    }
    passes = {FIRST: of(1.0), SECOND: of(0.5), FIRST_ALONE: of(1.0), SECOND_ALONE: of(0.8)}
    speeds = {4: (1.5, 1.4), 6: (1.1, 0.9), 8: (1.0, 0.8), 10: (1.2, 0.85)}
    ahead = {ahead_name(k, on): of(times[on]) for k, times in speeds.items() for on in (False, True)}
    return {DEMO: grid, PASSES: passes, NON_REPEATING: grid, AHEAD: ahead}


def test_every_goal_is_compared_with_its_measurement() -> None:
    forwards, demo, endless, passes, ahead = make_goals(Plan(), results())
    assert forwards.measured.value == 0.4 and forwards.is_met and not forwards.is_least
    assert demo.measured.value == endless.measured.value == passes.measured.value == 2.0
    assert ahead.measured.value == pytest.approx(1.25), "the best of each side: 8 in 1.0 s, 8 in 0.8 s"
    assert [goal.limit for goal in make_goals(Plan(), results())] == [0.5, 1.15, 0.97, 1.5, 1.15]
    missed = [goal.verdict for goal in make_goals(Plan(), results(suffix_s=1.05))]
    assert missed == ["met", "missed", "missed", "met", "met"]


def test_only_measured_parts_are_judged() -> None:
    part = {AHEAD: results()[AHEAD]}
    assert len(list(make_goals(Plan(), part))) == 1
    assert len(make_report(this_machine(), Plan(), part).tables) == 2


def test_the_report_holds_every_figure(tmp_path: Path) -> None:
    found, machine = results(), this_machine()
    report = make_report(machine, Plan(), found)
    text = report.write(tmp_path, tmp_path).read_text(encoding="utf-8")
    assert "| suffix by off, demo pair: tokens per second | >= 1.15x | 2.00x | 2.00 to 2.00 | met |" in text
    assert "| suffix | 200 | 2.00x | 2.00 to 2.00 | 2.00x | 10.00 | 15.0 | 0.40 |" in text
    assert "| second pass, off | 125 | 1.25x |" in text
    assert "on 20 of the problems, the ratio is 1.25x" in text.replace(
        "\n", " "
    ) and "Fastest without: drafts of 8; with: drafts of 8, ahead." in text.replace("\n", " ")
    assert machine.cpu in text
    data = json.loads((tmp_path / "acceleration.json").read_text())
    assert len(data["figures"][DEMO]) == len(SETTINGS) and len(data["runs"][PASSES][FIRST]) == 3
    for part in found:
        chart = (tmp_path / f"acceleration-{part}.svg").read_text()
        assert f"(acceleration-{part}.svg)" in text and ElementTree.fromstring(chart).tag.endswith("svg")
    stream = io.StringIO()
    for table in report.tables:
        Console(file=stream, width=80).print(table.rich())
    assert "goodput" in stream.getvalue() and "…" not in stream.getvalue(), "it fits a terminal"


def test_a_quick_run_is_smaller_in_everything() -> None:
    whole, quick = Plan(), Plan().quick()
    assert all(
        getattr(quick, name) < getattr(whole, name)
        for name in Plan.__dataclass_fields__
        if name not in ("repeat", "ahead_lengths")
    )
    assert len(quick.ahead_lengths) < len(whole.ahead_lengths) and len(PARTS) == 6


def test_a_bigram_model_says_what_followed() -> None:
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(Path("demo/models/target"))
    counts = count_bigrams(len(tokenizer))
    model = bigram_model(counts)
    often = counts.sum(1).topk(20).indices
    logits = model(often[None]).logits[0]
    assert torch.equal(logits.argmax(-1), counts[often].argmax(-1))
    shares = (counts[often] / counts[often].sum(1, keepdim=True)).amax(-1)
    assert torch.allclose(logits.softmax(-1).amax(-1), shares, atol=0.01)


def test_predictions_differ_from_the_responses_as_they_say() -> None:
    responses = ["Karl has 7 books and wins 12 more", "He counts them", ""]
    found = predictions(responses)
    assert list(found) == [WITHOUT, CHANGED, UNRELATED, SAME] and found[SAME] == responses
    assert found[WITHOUT] == ["", "", ""] and found[UNRELATED] == [*responses[1:], responses[0]]
    words = [text.split(" ") for text in (responses[0], found[CHANGED][0])]
    others = [(old, new) for old, new in zip(*words, strict=True) if old != new]
    assert len(others) == 3 and sum(new.isdigit() for _, new in others) == 1
    assert found[CHANGED][2] == "" and predictions(responses) == found
