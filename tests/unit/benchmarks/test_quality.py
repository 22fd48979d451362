"""The quality report: what is asked, what is kept, what is made of it."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scenarios.quality import Plan, plan_work
from benchmarks.scenarios.quality.figures import summarize, tau_ratio
from benchmarks.scenarios.quality.measure import (
    Record,
    draw_tasks,
    measure_all,
)
from benchmarks.scenarios.quality.report import collect, make_report
from benchmarks.scenarios.quality.settings import CARRY, MAIN, Group, Setting, make_groups
from demo.corpus import Split
from demo.tasks import Task
from fly.errors import InvalidRequest
from fly.messages import ModelInfo, Role
from fly.response import DeploymentInfo, Statistics
from tests.unit.benchmarks.answering_client import AnsweringClient

MODEL = ModelInfo(
    role=Role.TARGET,
    model_id="/home/someone/models/big",
    weight_fingerprint="f" * 32,
    architecture="Llama",
    token_map_hash="",
    vocab_size=640,
    context_length=1024,
    dtype="float32",
    shards=1,
    kv_capacity=0,
    version="0",
)
DEPLOYMENT = DeploymentInfo(target=MODEL, drafter=MODEL, presets=("flyserve",))


def record(problem: str, is_solved: bool = True, **figures: Any) -> Record:
    return Record(problem, is_solved, 1.0, Statistics(emitted=10, **figures))


def test_the_same_request_has_one_key_wherever_it_is_asked() -> None:
    settings = [setting for group in make_groups() for setting in group.settings]
    by_key: dict[str, set[str]] = {}
    for setting in settings:
        said = {k: v for k, v in vars(setting).items() if k not in ("line", "value")}
        if not setting.sampling.temperature:
            said["sampling"] = ""
        by_key.setdefault(setting.key, set()).add(repr(said))
    assert all(len(said) == 1 for said in by_key.values()) and len(by_key) < len(settings)


def test_problems_are_balanced_and_the_first_of_a_longer_draw() -> None:
    few, many = draw_tasks(Split.HELD_OUT, 6), draw_tasks(Split.HELD_OUT, 30)
    assert many[:6] == few and len({task.id for task in many}) == 30
    assert set(Counter(task.family for task in many).values()) == {10}
    assert draw_tasks(Split.HARD, 3) != few[:3]


def test_problems_are_sent_several_at_a_time_and_recorded_in_their_order() -> None:
    tasks, advanced = draw_tasks(Split.HELD_OUT, 9), list[None]()
    client, setting = AnsweringClient(tasks), Setting("carry", CARRY)
    records = measure_all(client, setting, tasks, 3, lambda: advanced.append(None))  # type: ignore[arg-type]
    assert [each.problem for each in records] == [task.id for task in tasks]
    assert len(advanced) == 9 and 1 < client.most_at_once <= 3


def test_a_setting_of_several_groups_is_measured_once_with_the_most_problems() -> None:
    setting, (few, many) = Setting("carry", CARRY), (draw_tasks(Split.HELD_OUT, count) for count in (2, 5))
    groups = [Group(name, name, (setting,)) for name in "abc"]
    ((found, tasks),) = plan_work(list(zip(groups, (few, many, few), strict=True))).values()
    assert (found, tasks) == (setting, many)


def test_a_rejection_ends_the_run() -> None:
    tasks = draw_tasks(Split.HELD_OUT, 6)
    client = AnsweringClient(tasks[:3])
    known = client._answers

    class Rejecting(dict[str, Task]):
        def __missing__(self, prompt: str) -> Task:
            raise InvalidRequest.of("prompt", "is bad")

    client._answers = Rejecting(known)
    with pytest.raises(InvalidRequest):
        measure_all(client, Setting("carry", CARRY), tasks, 1, lambda: None)  # type: ignore[arg-type]


def test_figures_are_against_the_same_problems() -> None:
    names = [f"held_out-trace-{n:05d}" for n in range(40)]
    baseline = {name: record(name, n % 10 != 0) for n, name in enumerate(names)}
    runs = {
        name: record(name, n % 10 != 1, tau=6.0, draft_rounds=2, rescued=1) for n, name in enumerate(names)
    }
    figures = summarize(runs, baseline | {"held_out-trace-99999": record("other", False)})
    assert (figures.problems, figures.accuracy, figures.lost, figures.gained) == (40, 0.9, 4, 4)
    assert figures.difference.value == 0 and figures.difference.low < 0 < figures.difference.high
    assert figures.retention.value == pytest.approx(1.0)
    assert (figures.tau.value, figures.tau.low) == (6.0, 6.0)
    assert figures.rescued_share == 0.1
    assert summarize(baseline, baseline).difference == summarize(runs, runs).difference


def test_tau_is_of_rounds_with_a_draft() -> None:
    runs = {
        "s-f-1": record("s-f-1", tau=4.0, draft_rounds=10, rounds=50),
        "s-f-2": record("s-f-2", tau=10.0, draft_rounds=20, rounds=20),
    }
    assert summarize(runs, runs).tau.value == 8.0


def test_a_ratio_of_taus_is_of_the_problems_that_both_have() -> None:
    runs = {f"s-f-{n}": record(f"s-f-{n}", tau=6.0, draft_rounds=n) for n in range(1, 9)}
    others = {f"s-f-{n}": record(f"s-f-{n}", tau=4.0, draft_rounds=3) for n in range(5, 30)}
    ratio = tau_ratio(runs, others)
    assert (ratio.value, ratio.low, ratio.high) == (1.5, 1.5, 1.5)


def test_the_report_has_the_figures_of_every_setting(tmp_path: Path) -> None:
    tasks = draw_tasks(Split.HELD_OUT, 12)
    groups = [(group, tasks) for group in make_groups([MAIN, "draft_length"])]
    client = AnsweringClient(tasks)
    records = {
        key: {r.problem: r for r in measure_all(client, setting, tasks, 4, lambda: None)}  # type: ignore[arg-type]
        for key, (setting, tasks) in plan_work(groups).items()
    }
    assert set(client.asked.values()) == {1}, "settings that groups share are measured once"
    report = make_report(Plan(), DEPLOYMENT, collect(groups, records))
    path = report.write(tmp_path / "docs", tmp_path / "docs")
    text = path.read_text(encoding="utf-8")
    assert "| flyserve, carry | 50.0% |" in text
    assert "`models/big`" in text and "someone" not in text
    assert "someone" not in (tmp_path / "docs/quality.json").read_text()
    assert "| draft length | reject | shrink | vllm |" in text and "| 25 | 1.000 (1.000 to 1.000) |" in text
    data = json.loads((tmp_path / "docs/quality.json").read_text())
    carry = next(row for row in data["groups"][MAIN] if row["line"] == "flyserve, carry")
    assert (carry["figures"]["lost"], carry["speculation"]["preset"]) == (6, "flyserve")
    charts = sorted(chart.name for chart in (tmp_path / "docs").glob("*.svg"))
    assert charts == ["quality-draft-length-retention.svg", "quality-draft-length-tau.svg"]
    assert all(f"({chart})" in text for chart in charts)
