"""The report of the scenario `vocabulary`."""

import io
import json
from pathlib import Path

from rich.console import Console

from benchmarks.harness.command import Context, Parts
from benchmarks.harness.machine import this_machine
from benchmarks.harness.report import Report
from benchmarks.scenarios.vocabulary import BASELINE, FOREIGN, NAMES, OWN, Plan, Timed, Tokens, make_report
from fly.response import Statistics


def timed(seconds: float, tokens_per_round: int) -> list[Timed]:
    rounds = 100 // tokens_per_round
    statistics = Statistics(emitted=100, rounds=rounds, draft_rounds=rounds, tau=tokens_per_round)
    return [Timed(seconds, statistics)] * 3


def report_of(folder: Path, differing: int) -> Report:
    speeds = {name: timed(0.5, 8) for name in NAMES} | {BASELINE: timed(1.0, 1), OWN: timed(0.5, 10)}
    same: list[tuple[int, ...]] = [(1, 2), (3, 4)]
    tokens: Tokens = {BASELINE: same, **{name: same for name in FOREIGN}}
    tokens["another, text"] = [*same[: len(same) - differing], *[(9,)] * differing]
    context = Context(this_machine(), Parts(folder, "", False), Console(file=io.StringIO()))
    return make_report(Plan(), context, speeds, tokens, {"text": [5e-5] * 9, "intersection": [2e-4] * 9})


def test_every_drafter_is_compared_with_plain_and_with_the_own_one(tmp_path: Path) -> None:
    report = report_of(tmp_path, differing=0)
    page = report.write(tmp_path, tmp_path).read_text(encoding="utf-8")
    assert "| another, text | 200 | 2.00x | 2.00 to 2.00 | 8.00 | 0.80x | 0.80 to 0.80 |" in page
    assert "| another, text | 2 | 2 |" in page and not report.faults
    goals = json.loads((tmp_path / "vocabulary.json").read_text())["goals"]
    assert [goal["verdict"] for goal in goals] == ["met"] * (2 * len(FOREIGN) + 1) + ["missed"]


def test_a_response_unlike_that_of_plain_decoding_is_a_fault(tmp_path: Path) -> None:
    report = report_of(tmp_path, differing=1)
    assert report.faults == ["another, text: 1 of 2 responses differ from plain decoding"]
