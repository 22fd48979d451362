"""The long mixed load: what is asked, what counts as grown, its report."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness.machine import this_machine
from benchmarks.scenarios.soak import Plan
from benchmarks.scenarios.soak.report import (
    WATCHED,
    Run,
    Sample,
    by_minutes,
    goals_table,
    grown,
    growth,
    make_report,
    summarize,
)
from benchmarks.scenarios.soak.requests import BAD, Requests

IDLE = Sample("router", 0.0, 100.0, 20, 8, 12, 0, 0)
MEMORY, FILES, THREADS, TASKS, OPEN, KV = WATCHED


def run_of(after: Sample = IDLE, **changes: object) -> Run:
    loaded = [replace(IDLE, at_s=60.0 * minute, tasks=12 + minute) for minute in range(31)]
    run = Run([IDLE] * 3, loaded, [after] * 3, {"reads": {"done": 9}}, {"ok": 9})
    return replace(run, **changes)  # type: ignore[arg-type]


def test_the_thirds_of_the_load_are_reported_separately() -> None:
    (tasks,) = growth(run_of(), TASKS)
    assert (tasks.before, tasks.first_third, tasks.last_third, tasks.most) == (12, 16.5, 37.5, 42)


@pytest.mark.parametrize(
    ("after", "fault"),
    [
        ({}, None),
        ({"memory_mb": 104.9, "files": 21, "tasks": 13, "threads": 10}, None),
        ({"memory_mb": 105.1}, "router: Resident memory, MB 100.0 before, 105.1 after"),
        ({"files": 22}, "router: File descriptors 20.0 before, 22.0 after"),
        ({"tasks": 14}, "router: Tasks of the event loop 12.0 before, 14.0 after"),
        ({"open": 1}, "router: Open sequences (router: requests) 0.0 before, 1.0 after"),
        ({"kv_tokens": 16}, "router: KV positions in use 0.0 before, 16.0 after"),
    ],
)
def test_growth_beyond_the_slack_is_reported(after: dict[str, float], fault: str | None) -> None:
    run = run_of(replace(IDLE, **after))  # type: ignore[arg-type]
    assert grown(summarize(run)) == ([] if fault is None else [fault])


def test_samples_are_thinned_out_to_medians() -> None:
    samples = [replace(IDLE, at_s=float(second), files=second) for second in range(601)]
    assert by_minutes(samples, "router", "files", 2) == [(2.5, 149.5), (7.5, 450)]
    assert by_minutes(samples, "unknown", "files", 2) == []


def test_a_seed_gives_the_same_requests_and_every_kind_occurs() -> None:
    one, other = Requests(3), Requests(3)
    asked = [one.draw() for _ in range(400)]
    assert asked == [other.draw() for _ in range(400)]
    assert {request.kind for request in asked} >= {
        "plain",
        "exact",
        "fly",
        "rejection",
        "three choices",
        BAD,
    }
    topics = {request.topic for request in asked if request.topic is not None}
    assert all(request.topic is None for request in asked if request.kind in ("fly", "rejection", BAD))
    for topic in topics:
        same = [request for request in asked if request.topic == topic]
        assert all((q.prompt, q.sampling) == (same[0].prompt, same[0].sampling) for q in same)


def test_the_report_says_what_failed_and_what_grew(tmp_path: Path) -> None:
    outcomes = {"reads": {"done": 9, "wrong": 1}, "leaves": {"left": 3, "failed": 2}}
    run = run_of(replace(IDLE, open=1), outcomes=outcomes, faults=["NotReady: gone"])
    assert [row[-1] for row in goals_table(summarize(run), outcomes).rows] == ["2", "1", "1"]
    report = make_report(this_machine(), Plan(), run)
    page = report.write(tmp_path, tmp_path).read_text()
    assert "- NotReady: gone" in page and "| router | 0 | 1 | 0 | 0 | 0 | grown |" in page
    data = json.loads((tmp_path / "soak.json").read_text())
    assert data["figures"]["open"]["growth"][0]["is_back"] is False
    assert len(data["figures"]["tasks"]["minutes"]["router"]) == 15
    assert (tmp_path / "soak-memory.svg").read_text().endswith("</svg>\n")
