"""The scenario `prepared`: more drafts are ready; the report compares the best lengths."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.harness.command import Context, Parts
from benchmarks.harness.machine import this_machine
from benchmarks.scenarios import prepared
from benchmarks.scenarios.acceleration.measure import Run
from benchmarks.scenarios.prepared.plan import AHEAD, DEMO, NOTHING, SIMULATED, Plan, Way
from benchmarks.scenarios.prepared.report import make_report
from fly.response import Statistics

PLAN = Plan(draft_lengths=(4, 8), outcomes=(4,))


def made(seconds: float) -> list[Run]:
    statistics = replace(Statistics(), emitted=100, tau=5.0, draft_rounds=20, drafted=80, drafted_ahead=40)
    return [Run(number, 0, seconds, statistics) for number in range(3)]


def test_the_report_compares_each_way_at_its_best_length(tmp_path: Path) -> None:
    seconds = {NOTHING: 2.0, AHEAD: 1.5, Way(4): 1.2}
    runs = {s.name: made(seconds[s.way] * (1.1 if s.draft_length == 4 else 1.0)) for s in PLAN.settings()}
    report = make_report(PLAN, this_machine(), {DEMO: runs, SIMULATED: runs})
    page = report.write(tmp_path, tmp_path).read_text("utf-8")
    assert "| fly | 4 outcomes | 8 | 83 | 1.25x | 1.25 to 1.25 | 5.00 | 50% |" in page
    assert "| fly | nothing | 8 | 150 | 0.75x | 0.75 to 0.75 | 5.00 | 50% |" in page, "in simulated seconds"
    goals = json.loads((tmp_path / "prepared.json").read_text("utf-8"))["goals"]
    assert [goal["limit"] for goal in goals] == [1.1, 1.1, 1.25, 1.25]


@pytest.mark.slow
def test_more_drafts_are_ready_when_more_outcomes_are_prepared(tmp_path: Path) -> None:
    context = Context(
        this_machine(), Parts(tmp_path, "", False), Console(file=io.StringIO()), only=(SIMULATED,)
    )
    plan = replace(Plan().quick(), dilation=1.0)
    report = prepared.run(plan, context)
    rows = json.loads(report.write(tmp_path, tmp_path).with_suffix(".json").read_text("utf-8"))["figures"]
    by_way = {row["way"]: row for row in rows[SIMULATED] if row["mode"] == "exact"}
    assert by_way["nothing"]["ready"] == 0 < by_way["ahead"]["ready"] < by_way["4 outcomes"]["ready"]
    assert len(by_way) == 3
