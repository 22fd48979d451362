"""The scenario `real`: what is sent, its verdicts, its goals, its report."""

import sys
from collections.abc import Mapping
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.harness import workloads
from benchmarks.harness.command import Context
from benchmarks.harness.machine import this_machine
from benchmarks.harness.program import running
from benchmarks.harness.runs import Parts, Run, Runs, accuracy, cached_share
from benchmarks.harness.system import DEMO_MODELS
from benchmarks.harness.workloads import draw, renderer, requests, workload_source
from benchmarks.scenarios import real
from benchmarks.scenarios.real import PARTS, Plan
from benchmarks.scenarios.real.report import make_goals, make_report
from flyserve.core.errors import NotReady
from flyserve.core.response import Statistics

SOURCE = """
from benchmarks.harness.program import serve

def answer(part, count=0, number=0, judge=None):
    if judge is not None:
        return None if part == "chat" else judge == f"{part} {number}"
    return [{"text": f"{part} {place}"} for place in range(count)]

serve(lambda: ("", answer))
"""


def runs(cached: int = 90, solved: bool | None = True, seconds: float = 1.0) -> list[Run]:
    figures = Statistics(emitted=10, cached_tokens=cached)
    return [Run(number, 0, seconds, figures, 1, 100, solved if number else False) for number in range(4)]


def test_requests_of_an_agent_continue_each_other_as_long_as_they_fit() -> None:
    def render(item: Mapping[str, Any]) -> tuple[int, ...]:
        return tuple(token for message in item["messages"] for token in message["content"])

    def trace(*lengths: int, first: int = 0) -> list[dict[str, Any]]:
        roles = ["user", "assistant"] * len(lengths)
        return [
            {"role": role, "content": [first] * length} for role, length in zip(roles, lengths, strict=False)
        ]

    short, long, alone = trace(2, 1, 2), trace(1, 1, 1, 1, 1, 90, 1, first=7), trace(2, 9, 2)
    found = requests([short, alone, long], render, 9, 10)
    assert [len(prompt) for prompt in found] == [1, 3, 5, 2, 5]
    assert all(later[: len(prompt)] == prompt for prompt, later in pairwise(found[:3]))
    assert requests([short, long], render, 2, 10) == found[:2]


def test_a_model_without_a_template_reads_a_dialogue_and_text_is_sent_as_it_is() -> None:
    render = renderer(DEMO_MODELS / "target")
    assert render({"text": "1 + 1"}) == render({"text": "1 + 1"}) != ()
    asked = {"messages": [{"role": "user", "content": "1 + 1"}]}
    assert len(render(asked)) > len(render({"text": "1 + 1"}))


def test_prompts_and_verdicts_come_from_a_program(tmp_path: Path) -> None:
    file = tmp_path / "source.py"
    file.write_text(SOURCE)
    with running(sys.executable, file) as source:
        work = draw(source, "code", DEMO_MODELS / "target", 3, 0)
        assert len(set(work.prompts)) == 3
        assert work.judge(2, "code 2") is True and work.judge(1, "code 2") is False
        assert draw(source, "chat", DEMO_MODELS / "target", 1, 0).judge(0, "chat 0") is None


def test_a_verifier_that_fails_is_named(tmp_path: Path) -> None:
    file = tmp_path / "source.py"
    file.write_text(SOURCE.replace('judge == f"{part} {number}"', "1 / 0"))
    with running(sys.executable, file) as source:
        work = draw(source, "code", DEMO_MODELS / "target", 1, 0)
        with pytest.raises(NotReady, match=r"source.py failed: ZeroDivisionError"):
            work.judge(0, "text")


def test_the_source_names_a_package_that_is_missing() -> None:
    """This environment has none of the packages."""
    with running(sys.executable, workloads._SOURCE) as source:
        for part in PARTS:
            with pytest.raises(NotReady, match=r"workload_source.py failed: ModuleNotFoundError: .*"):
                source.ask(part=part, count=1)
        with pytest.raises(NotReady, match="KeyError: 'nothing'"):
            source.ask(part="nothing")


def test_without_the_packages_the_remedy_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(workloads, "_MADE", tmp_path / "missing")
    monkeypatch.delenv(workloads.VARIABLE, raising=False)
    written = StringIO()
    context = Context(this_machine(), Console(file=written))
    with workload_source(context) as source:
        assert source is None
    assert "`make workloads` or WORKLOADS_PYTHON" in " ".join(written.getvalue().split())
    assert not real.run(Plan(), context).data["runs"]


def test_a_missing_model_is_left_out_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(real, "is_fetched", lambda model: False)
    monkeypatch.setenv(workloads.VARIABLE, sys.executable)
    written = StringIO()
    report = real.run(Plan(), Context(this_machine(), Console(file=written), only=("chat",)))
    assert "make real" in written.getvalue() and not report.data["runs"]


def test_drafts_must_leave_the_cache_of_prefixes_as_it_is() -> None:
    agents: Runs = {"plain": runs(), "exact": runs(90), "FLy": runs(80)}
    goals = {goal.name.split(", ")[1].split()[0]: goal for goal in make_goals({"agents": {"A": agents}})}
    assert {name: goal.verdict for name, goal in goals.items()} == {"exact": "met", "FLy": "missed"}
    assert goals["FLy"].measured.value == pytest.approx(80 / 90) and cached_share(runs(80)) == 0.8
    assert not list(make_goals({"chat": {"A": agents}}))


def test_a_page_has_accuracy_where_something_verifies(tmp_path: Path) -> None:
    code: Runs = {"plain": runs(0), "FLy": runs(0, seconds=0.5)}
    unjudged = {name: [Run(n, 0, 1.0, Statistics(emitted=5)) for n in range(2)] for name in code}
    parts: Parts = {"chat": {"A": unjudged}, "code": {"A": code}}
    page = make_report(this_machine(), Plan(), parts).write(tmp_path, tmp_path).read_text()
    assert page.startswith("Measured at commit ")
    before, _, after = page.partition("## Code")
    assert "accuracy |" not in before and "| FLy | 20 | 2.00x | 2.00 to 2.00 | 100% | 75.0% |" in after
    assert accuracy(runs(solved=None)) == 0.0 and accuracy(unjudged["plain"]) is None
    assert (tmp_path / "real-chat.svg").is_file() and (tmp_path / "real-code.svg").is_file()
