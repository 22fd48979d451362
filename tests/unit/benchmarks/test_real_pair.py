"""The scenario `real_pair`: its report, and a pair that is not there."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.harness.command import Context, Parts
from benchmarks.harness.machine import this_machine
from benchmarks.scenarios.real_pair import (
    SETTINGS,
    Overlap,
    Plan,
    Timed,
    Waited,
    make_report,
    run,
    way_of,
)
from benchmarks.scenarios.vocabulary import BASELINE, WAYS
from fly.errors import ConfigError
from fly.response import Statistics
from fly.types import Mode


def timed(seconds: float, draft_rounds: int) -> list[Timed]:
    statistics = Statistics(emitted=100, rounds=50, draft_rounds=draft_rounds, tau=3)
    return [Timed(seconds, statistics)] * 3


def waited(last: int) -> Waited:
    return Waited((1, last), Statistics(emitted=2, rounds=1, draft_rounds=1, tau=3))


def context_of(folder: Path) -> Context:
    return Context(this_machine(), Parts(folder, "", False), Console(file=io.StringIO()))


def test_every_setting_is_compared_with_plain(tmp_path: Path) -> None:
    speeds = {name: timed(0.5, 40) for name in SETTINGS} | {BASELINE: timed(1.0, 0)}
    responses = {BASELINE: (2, 4), "exact, text": (2, 4), "exact, auto": (2, 9), "FLy, text": (3, 5)}
    found = {name: [waited(token) for token in last] for name, last in responses.items()}
    costs = {"text": [5e-5] * 9, "intersection": [2e-4] * 9}
    overlap = Overlap(262144, 49152, 0.939)
    report = make_report(Plan(), context_of(tmp_path), overlap, speeds, found, costs)
    page = report.write(tmp_path, tmp_path).read_text(encoding="utf-8")
    assert "262144 and 49152 tokens, and the target has 93.9% of the drafter's" in " ".join(page.split())
    assert "| FLy, text | 200 | 2.00x | 2.00 to 2.00 | 3.00 | 80% |" in page
    assert "| exact, text | 3.00 | 2 | 2 |" in page and "| FLy, text | 3.00 | 0 | 2 |" in page
    assert report.faults == ["exact, auto: 1 of 2 responses differ from plain decoding"]


def test_every_way_is_decoded_exactly_and_by_fly() -> None:
    found = {(way, decoding.mode) for way, decoding in (way_of(name, Plan()) for name in SETTINGS)}
    assert found == {(way, mode) for way in WAYS for mode in (Mode.EXACT, Mode.FLY)}


def test_a_missing_model_is_named_with_what_fetches_it(tmp_path: Path) -> None:
    plan = Plan(target=tmp_path / "nothing", drafter=tmp_path)
    with pytest.raises(ConfigError, match="nothing does not exist: `make real` fetches"):
        run(plan, context_of(tmp_path))
