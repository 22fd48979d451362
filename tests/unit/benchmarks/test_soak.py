"""The long mixed load: what is asked, what counts as grown, its report."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness.machine import this_machine
from benchmarks.scenarios.soak import Plan
from benchmarks.scenarios.soak.report import (
    Run,
    Sample,
    grown,
    growth,
    make_report,
)
from benchmarks.scenarios.soak.requests import BAD, Requests

IDLE = Sample("router", 0.0, 100.0, 20, 8, 12, 0, 0)


def run_of(after: Sample = IDLE, **changes: object) -> Run:
    loaded = [replace(IDLE, at_s=60.0 * minute, tasks=12 + minute) for minute in range(31)]
    run = Run([IDLE] * 3, loaded, [after] * 3, {"reads": {"done": 9}}, {"ok": 9})
    return replace(run, **changes)  # type: ignore[arg-type]


def test_the_thirds_of_the_load_are_reported_separately() -> None:
    (tasks,) = (row for row in growth(run_of()) if row.watched == "tasks of the event loop")
    assert (tasks.before, tasks.first_third, tasks.last_third, tasks.most) == (12, 16.5, 37.5, 42)


@pytest.mark.parametrize(
    ("after", "fault"),
    [
        ({}, None),
        ({"memory_mb": 104.9, "files": 21, "tasks": 13, "threads": 10}, None),
        ({"memory_mb": 105.1}, "router: resident memory, MB 100.0 before, 105.1 after"),
        ({"files": 22}, "router: file descriptors 20.0 before, 22.0 after"),
        ({"tasks": 14}, "router: tasks of the event loop 12.0 before, 14.0 after"),
        ({"open": 1}, "router: open sequences (router: requests) 0.0 before, 1.0 after"),
        ({"kv_tokens": 16}, "router: KV positions in use 0.0 before, 16.0 after"),
    ],
)
def test_growth_beyond_the_slack_is_reported(after: dict[str, float], fault: str | None) -> None:
    run = run_of(replace(IDLE, **after))  # type: ignore[arg-type]
    assert grown(growth(run)) == ([] if fault is None else [fault])


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
    topics = {request.topic for request in asked if request.topic}
    assert all(not request.topic for request in asked if request.kind in ("fly", "rejection", BAD))
    for topic in topics:
        same = [request for request in asked if request.topic == topic]
        assert all((q.prompt, q.sampling) == (same[0].prompt, same[0].sampling) for q in same)


def test_the_report_says_what_failed_and_what_grew(tmp_path: Path) -> None:
    outcomes = {"reads": {"done": 9, "wrong": 1}, "leaves": {"left": 3, "failed": 2}}
    run = run_of(replace(IDLE, open=1), outcomes=outcomes, faults=["NotReady: gone"])
    page = make_report(this_machine(), Plan(), run).write(tmp_path, tmp_path).read_text()
    assert "| requests that failed | 0 | 2 |" in page and "| figures that grew | 0 | 1 |" in page
    assert "| responses that differ from an earlier one | 0 | 1 |" in page
    assert "| errors of clients and in the logs, listed below | 0 | 1 |" in page
    assert "| leaves | 0 | 3 | 0 | 0 | 0 | 2 |" in page and "- NotReady: gone" in page
    assert "| open sequences (router: requests) | router | 0 | 1 | 0 | 0 | 0 | grown |" in page
    figures = json.loads((tmp_path / "soak.json").read_text())["figures"]
    assert [each["watched"] for each in figures if not each["is_back"]] == [
        "open sequences (router: requests)"
    ]
    assert (tmp_path / "soak-memory.svg").read_text().endswith("</svg>\n")
