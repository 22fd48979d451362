"""The quality report: what is asked, what is kept, what is made of it."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.machine import this_machine
from benchmarks.harness.runs import Run
from benchmarks.scenarios.quality import Plan, measure_rules
from benchmarks.scenarios.quality.plan import RULES
from benchmarks.scenarios.quality.report import make_report, rule_rows
from demo.corpus import Split
from demo.tasks import Task, evaluation_tasks
from flyserve.core.errors import InvalidRequest
from flyserve.core.messages import ModelInfo, Role
from flyserve.core.response import DeploymentInfo, Statistics
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


def runs(solved: list[bool], **figures: Any) -> list[Run]:
    statistics = Statistics(emitted=10, **figures)
    return [Run(number, 0, 1.0, statistics, is_solved=each) for number, each in enumerate(solved)]


def test_problems_are_balanced_and_the_first_of_a_longer_draw() -> None:
    few, many = evaluation_tasks(Split.HELD_OUT, 7), evaluation_tasks(Split.HELD_OUT, 30)
    assert many[:7] == few and len({task.id for task in many}) == 30
    assert set(Counter(task.family for task in many).values()) == {10}
    assert evaluation_tasks(Split.HARD, 3) != few[:3]


def test_problems_are_sent_several_at_a_time_and_recorded_in_their_order() -> None:
    tasks, advanced = evaluation_tasks(Split.HELD_OUT, 9), list[None]()
    client = AnsweringClient(tasks)
    found = measure_rules(client, tasks, 3, lambda: advanced.append(None))  # type: ignore[arg-type]
    assert [*found] == [*RULES] and all([run.prompt for run in own] == [*range(9)] for own in found.values())
    assert len(advanced) == 9 * len(RULES) and 1 < client.most_at_once <= 3


def test_a_rejection_ends_the_run() -> None:
    tasks = evaluation_tasks(Split.HELD_OUT, 6)
    client = AnsweringClient(tasks[:3])

    class Rejecting(dict[str, Task]):
        def __missing__(self, prompt: str) -> Task:
            raise InvalidRequest.of("prompt", "is bad")

    client._answers = Rejecting(client._answers)
    with pytest.raises(InvalidRequest):
        measure_rules(client, tasks, 1, lambda: None)  # type: ignore[arg-type]


def test_figures_are_against_the_same_problems() -> None:
    plain = runs([number % 10 != 0 for number in range(40)])
    rule = runs([number % 10 != 1 for number in range(40)], tau=6.0, draft_rounds=2, rescued=1)
    base, figures = rule_rows({"plain": plain, "FLy": rule})
    assert (figures.problems, figures.accuracy, figures.changed) == (40, 0.9, (4, 4))
    assert figures.retention.value == pytest.approx(1.0)
    assert figures.retention.low < 1 < figures.retention.high
    assert (figures.tau.value, figures.tau.low, figures.rescued) == (6.0, 6.0, 0.1)
    assert base.tau is None


def test_tau_is_of_rounds_with_a_draft() -> None:
    few = runs([True], tau=4.0, draft_rounds=10, rounds=50)
    many = runs([True], tau=10.0, draft_rounds=20, rounds=20)
    _, figures = rule_rows({"plain": runs([True, True]), "FLy": [*few, *many]})
    assert figures.tau.value == 8.0


def test_the_report_has_every_rule_and_shows_families_apart(tmp_path: Path) -> None:
    tasks, plan = evaluation_tasks(Split.HELD_OUT, 12), Plan(problems=12)
    found = measure_rules(AnsweringClient(tasks), tasks, 4, lambda: None)  # type: ignore[arg-type]
    traces = [number for number, task in enumerate(tasks) if task.family == "trace"]
    for number in traces:
        found["flyserve"][number] = Run(number, 0, 1.0, Statistics(emitted=10), is_solved=False)
    report = make_report(this_machine(), plan, DEPLOYMENT, {"main": found})
    text = report.write(tmp_path / "docs", tmp_path / "docs").read_text(encoding="utf-8")
    assert text.startswith("Measured at commit ") and "| entropy, carry | 50.0% | 50.00" in text
    assert "| setting | word_problem | lookup | trace |" in text
    assert "| plain | 100.0% | 100.0% | 100.0% |" in text
    assert "| flyserve | 50.0% (50% of plain) | 50.0% (50% of plain) | 0.0% (0% of plain) |" in text
    assert "`models/big`" in text and "someone" not in text and "(quality-main.svg)" in text
    assert "someone" not in (tmp_path / "docs/quality.json").read_text()
    rows = json.loads((tmp_path / "docs/quality.json").read_text())["groups"]["main"]
    assert [row["setting"] for row in rows] == list(RULES) and (tmp_path / "docs/quality-main.svg").is_file()
