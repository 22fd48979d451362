"""The parts of the scenario `load` beside its levels, and the command that writes their report."""

import json
import os
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.harness import command
from benchmarks.harness.machine import this_machine
from benchmarks.harness.report import Row
from benchmarks.harness.system import process_cpu_s
from benchmarks.scenarios.load import balancing, overload
from benchmarks.scenarios.load.telemetry import OFF, Plan, compare, make_report, settings
from services.common.config import parse
from services.common.telemetry.config import TelemetryConfig


def test_steeper_laws_repeat_fewer_prefixes() -> None:
    plan = balancing.Plan(requests=200)

    def most_frequent(exponent: float) -> int:
        prefixes = [tuple(prompt[:16]) for prompt in plan.prompts(exponent)]
        return max(prefixes.count(prefix) for prefix in set(prefixes))

    assert most_frequent(0.0) < most_frequent(1.0) < most_frequent(3.0)


def test_an_overload_is_compared_with_the_peak(tmp_path: Path) -> None:
    figures = Row(
        peak_per_s=10.0,
        offered_per_s=40.0,
        admitted_per_s=9.0,
        outcomes={"rejected": 30, "done": 9},
        rejection_p50_ms=1.5,
        rejection_p99_ms=4.0,
        memory_before_mb=100.0,
        memory_most_mb=101.0,
        usual_s=1.0,
        recovery_s=2.0,
        machine_load=(0.5, 0.6),
    )
    report = overload.make_report(overload.Plan(), {"enough": figures})
    text = report.write(tmp_path, tmp_path).read_text("utf-8")
    assert "| finished in time, requests/s | 9.0 (90% of the peak) |" in text
    assert "| requests | 9 done, 30 rejected |" in text


def test_the_clock_is_that_of_the_whole_process() -> None:
    own, before = time.process_time(), process_cpu_s(os.getpid())
    while time.process_time() < own + 0.05:
        pass
    assert process_cpu_s(os.getpid()) - before == pytest.approx(time.process_time() - own, abs=0.02)


def test_telemetry_is_compared_with_none_in_the_same_repetition(tmp_path: Path) -> None:
    parsed = {
        name: parse(TelemetryConfig, section, name) for name, section in settings("http://here:1").items()
    }
    assert next(iter(parsed)) == OFF and parsed[OFF] == TelemetryConfig()
    off, metrics = compare({OFF: [100.0, 200.0, 400.0], "metrics": [105.0, 210.0, 420.0]}, "plain")
    assert (off.cpu_us, off.ratio.value) == (200.0, 1.0)
    assert metrics.ratio.value == metrics.ratio.low == metrics.ratio.high == pytest.approx(1.05)
    page = make_report(this_machine(), Plan(), [off, metrics], 7).write(tmp_path, tmp_path).read_text()
    assert "| plain | metrics | 210.0 | 1.050 (1.050-1.050) |" in page and "7 spans" in page


@pytest.fixture
def run_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(command, "PAGES", tmp_path / "pages")
    outcome = balancing.Outcome("round_robin", 0.5, 0.25, 1.0)
    monkeypatch.setattr(balancing, "run", lambda plan, _: balancing.make_report(plan, [outcome]))
    return CliRunner()


def test_a_quick_run_or_a_part_replaces_no_published_page(run_command: CliRunner, tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(command.main)
    given = ["load", "--part", "balancing", "--set", "balancing.requests=7"]
    done = run_command.invoke(app, [*given, "--set", "balancing.exponents=[0.5]"])
    assert done.exit_code == 0 and "round_robin" in done.stdout
    page = (tmp_path / "results" / "load.md").read_text()
    assert page.startswith("Measured at commit ") and "\n# Under load\n\n## Balancing" in page
    assert not (tmp_path / "pages").exists() and (tmp_path / "results" / "load-balancing.svg").is_file()
    assert json.loads((tmp_path / "results" / "load.json").read_text())["plan"]["balancing"]["requests"] == 7
    rejected = run_command.invoke(app, ["load", "--set", "balancing.requests=0"])
    assert rejected.exit_code == 2 and "balancing.requests: '0' does not fit" in rejected.stderr
    moved = run_command.invoke(app, ["overload"])
    assert moved.exit_code == 2 and "`load --part overload`" in moved.stderr
    assert all(name in run_command.invoke(app, ["list"]).stdout for name in command.SCENARIOS)
