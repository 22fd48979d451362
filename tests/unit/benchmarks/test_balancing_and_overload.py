"""The reports of the balancing and overload scenarios, and the command that writes them."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.harness import command
from benchmarks.harness.report import Row
from benchmarks.scenarios import balancing, overload


def test_every_policy_has_a_row_and_every_exponent_a_column(tmp_path: Path) -> None:
    plan = balancing.Plan(exponents=(0.5, 1.0))
    outcomes = [
        balancing.Outcome(policy, exponent, rate, 1.0 + rate)
        for policy, rate in (("prefix_affinity", 0.75), ("round_robin", 0.25))
        for exponent in plan.exponents
    ]
    text = balancing.make_report(plan, outcomes).write(tmp_path, tmp_path).read_text(encoding="utf-8")
    assert "| policy | exponent 0.5 | exponent 1 |" in text
    assert "| `prefix_affinity` | 75.0%, 1.75x | 75.0%, 1.75x |" in text and "(balancing.svg)" in text
    assert ">round_robin, exponent 1</text>" in (tmp_path / "balancing.svg").read_text()
    assert json.loads((tmp_path / "balancing.json").read_text())["outcomes"][0]["hit_rate"] == 0.75


def test_steeper_laws_repeat_fewer_prefixes() -> None:
    plan = balancing.Plan(requests=200)

    def most_frequent(exponent: float) -> int:
        prefixes = [tuple(prompt[:16]) for prompt in plan.prompts(exponent)]
        return max(prefixes.count(prefix) for prefix in set(prefixes))

    assert most_frequent(0.0) < most_frequent(1.0) < most_frequent(3.0)
    assert list(plan.prompts(1.0)) == list(plan.prompts(1.0))


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
    text = (
        overload.make_report(overload.Plan(), {"enough": figures})
        .write(tmp_path, tmp_path)
        .read_text("utf-8")
    )
    assert "| finished in time, requests/s | 9.0 (90% of the peak) |" in text
    assert "| requests | 9 done, 30 rejected |" in text
    assert "| rejected within, ms | 1.5 (median), 4.0 (99%) |" in text


@pytest.fixture
def run_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(command, "PAGES", tmp_path / "pages")
    outcome = balancing.Outcome("round_robin", 0.5, 0.25, 1.0)
    monkeypatch.setattr(balancing, "run", lambda plan, _: balancing.make_report(plan, [outcome]))
    return CliRunner()


def test_a_quick_run_replaces_no_published_page(run_command: CliRunner, tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(command.main)
    settings = ["--set", "requests=7", "--set", "exponents=[0.5]"]
    done = run_command.invoke(app, ["balancing", "--quick", *settings])
    assert done.exit_code == 0 and "round_robin" in done.stdout
    results = tmp_path / "results"
    assert (results / "balancing.md").is_file() and not (tmp_path / "pages").exists()
    assert json.loads((results / "balancing.json").read_text())["plan"]["requests"] == 7
    assert run_command.invoke(app, ["balancing", *settings]).exit_code == 0
    assert (tmp_path / "pages" / "balancing.md").is_file()
    rejected = run_command.invoke(app, ["balancing", "--set", "requests=0"])
    assert rejected.exit_code == 2 and "does not fit" in rejected.stderr
    assert "telemetry" in run_command.invoke(app, []).stdout
