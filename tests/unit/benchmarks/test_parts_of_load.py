"""The part `overload`, and the command that writes reports of parts."""

import asyncio
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.harness import command
from benchmarks.harness.client import PLAIN
from benchmarks.harness.report import Row
from benchmarks.scenarios.load import overload
from flyserve.core.errors import DeadlineExceeded, FlyServeError, InternalError, NotReady

FIGURES = Row(
    peak_per_s=10.0,
    offered_per_s=40.0,
    admitted_per_s=9.0,
    outcomes={"rejected": 30, "done": 9},
    rejection_p50_ms=1.5,
    rejection_p99_ms=4.0,
    memory_before_mb=100.0,
    memory_most_mb=101.0,
)


@pytest.fixture
def run_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(command, "PAGES", tmp_path / "pages")
    monkeypatch.setattr(overload, "run", lambda plan, _: overload.make_report(plan, {"enough": FIGURES}))
    return CliRunner()


def test_a_part_replaces_no_published_page_and_an_overload_is_compared_with_the_peak(
    run_command: CliRunner, tmp_path: Path
) -> None:
    app = typer.Typer()
    app.command()(command.main)
    done = run_command.invoke(app, ["load", "--part", "overload", "--set", "overload.places=7"])
    assert done.exit_code == 0 and "of the peak" in done.stdout
    page = (tmp_path / "results" / "load.md").read_text()
    assert page.startswith("Measured at commit ") and "\n# Under load\n\n## Overload" in page
    assert "| enough | 10.0 | 40.0 | 9.0 | 90% | 9 done, 30 rejected | 1.5 | 4.0 | 100 | 101 |" in page
    assert not (tmp_path / "pages").exists()
    assert json.loads((tmp_path / "results" / "load.json").read_text())["plan"]["overload"]["places"] == 7
    rejected = run_command.invoke(app, ["load", "--set", "overload.factor=0"])
    assert rejected.exit_code == 2 and "overload.factor: is '0', must be" in rejected.stderr
    into = run_command.invoke(app, ["load", "--part", "overload", "--output", "/proc/nothing"])
    assert into.exit_code == 2 and "/proc/nothing/load.json cannot be written" in into.stderr
    moved = run_command.invoke(app, ["overload"])
    assert moved.exit_code == 2 and "`load --part overload`" in moved.stderr
    assert all(name in run_command.invoke(app, ["list"]).stdout for name in command.SCENARIOS)


@pytest.mark.parametrize("error", [InternalError("broken"), DeadlineExceeded("late")])
async def test_a_peak_without_finished_requests_is_none(error: FlyServeError) -> None:
    class Failing:
        async def generate(self, *_: object, **__: object) -> None:
            await asyncio.sleep(0.001)
            raise error

    with pytest.raises(NotReady, match=r"the peak cannot be measured: \d+ (failed|late)"):
        await overload._peak(overload.Plan(peak_s=0.1), Failing(), PLAIN)  # type: ignore[arg-type]
