"""The scenario `gpu` on a CPU, with tiny models."""

import io
import json
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.harness.command import Context, Parts
from benchmarks.harness.machine import this_machine
from benchmarks.scenarios import gpu
from benchmarks.scenarios.gpu.plan import CPU, Plan
from benchmarks.scenarios.gpu.serve import EXACT, PLAIN_NAME


def context(folder: Path, only: tuple[str, ...] = ()) -> Context:
    return Context(this_machine(), Parts(folder, "", False), Console(file=io.StringIO()), only=only)


def test_the_whole_measurement_runs_on_a_cpu(tmp_path: Path) -> None:
    plan = replace(Plan().quick(), device=CPU, models=tmp_path / "models", measure_s=0.01)
    report = gpu.run(plan, context(tmp_path))
    page = report.write(tmp_path, tmp_path).read_text("utf-8")
    assert not report.faults and not report.is_published
    titles = ("Attention at", "Exactness", "Forwards of", "Through gRPC", "What the device")
    assert all(f"## {title}" in page for title in titles)
    found = json.loads((tmp_path / "gpu.json").read_text("utf-8"))
    assert all(each["equal"] == each["prompts"] for each in found["exact"] if each["dtype"] == "float32")
    plain, exact = (found["serve"][0]["turns"][name][0]["tokens"] for name in (PLAIN_NAME, EXACT))
    assert plain == exact


def test_a_part_that_fails_is_reported_and_the_next_one_runs(tmp_path: Path) -> None:
    (tmp_path / "models").touch()
    plan = replace(Plan().quick(), device=CPU, models=tmp_path / "models")
    report = gpu.run(plan, context(tmp_path, only=("exact", "probe")))
    (fault,) = report.faults
    assert fault.startswith("gpu: exact failed: ") and str(tmp_path / "models") in fault
    assert report.data["probe"] is not None and report.data["exact"] is None
    assert "- exact: " in report.page and "## Attention" in report.page


def test_no_part_begins_after_the_time_of_the_run(tmp_path: Path) -> None:
    plan = replace(Plan().quick(), device=CPU, models=tmp_path / "models", total_s=1e-9)
    report = gpu.run(plan, context(tmp_path, only=("probe", "forward")))
    assert len(report.faults) == 3 and all("not begun: 1e-09 s (total_s)" in fault for fault in report.faults)
    assert "- forward: not begun" in report.page and not (tmp_path / "models").exists()
