"""The scenario `gpu` on a CPU, with tiny models."""

import io
import json
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.harness.command import Context
from benchmarks.harness.machine import this_machine
from benchmarks.scenarios import gpu
from benchmarks.scenarios.gpu.plan import CPU, Plan
from benchmarks.scenarios.gpu.serve import WAYS


def context(only: tuple[str, ...] = ()) -> Context:
    return Context(this_machine(), Console(file=io.StringIO()), only=only)


def test_the_whole_measurement_runs_on_a_cpu(tmp_path: Path) -> None:
    plan = replace(Plan().quick(), device=CPU, models=tmp_path / "models", measure_s=0.01)
    report = gpu.run(plan, context())
    page = report.write(tmp_path, tmp_path).read_text("utf-8")
    assert not report.faults and not report.is_published
    titles = ("Exactness", "Forwards of", "Through gRPC")
    assert all(f"## {title}" in page for title in titles)
    found = json.loads((tmp_path / "gpu.json").read_text("utf-8"))
    assert all(each["equal"] == each["prompts"] for each in found["exact"] if each["dtype"] == "float32")
    assert {each["setting"] for each in found["serve"]} == set(WAYS)
    assert all(each["tokens"] for each in found["serve"])


def test_a_part_that_fails_is_reported_and_the_next_one_runs(tmp_path: Path) -> None:
    (tmp_path / "models").touch()
    plan = replace(Plan().quick(), device=CPU, models=tmp_path / "models")
    report = gpu.run(plan, context(only=("exact", "forward")))
    exact, forward = report.faults
    assert exact.startswith("gpu: exact failed: ") and str(tmp_path / "models") in exact
    assert forward.startswith("gpu: forward failed: ") and report.data["device"] is not None
    assert "- exact: " in report.page and "- forward: " in report.page


def test_no_part_begins_after_the_time_of_the_run(tmp_path: Path) -> None:
    plan = replace(Plan().quick(), device=CPU, models=tmp_path / "models", total_s=1e-9)
    report = gpu.run(plan, context(only=("exact", "forward")))
    assert len(report.faults) == 3 and all("not begun: 1e-09 s (total_s)" in fault for fault in report.faults)
    assert "- forward: not begun" in report.page and not (tmp_path / "models").exists()
