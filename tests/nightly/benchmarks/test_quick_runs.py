"""The benchmarks in their quick form: a report is written, and no process is left."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.scenarios.load.levels import SETTINGS
from tests.support.leftovers import MarkedCommand
from tests.support.processes import ROOT


def run_benchmark(name: str, output: Path, *flags: str) -> Any:
    """Return its report as data; no process that it started may be left."""
    command = MarkedCommand()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", name, "--quick", "--output", str(output), *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=800,
        env=command.environment,
    )
    assert done.returncode == 0, done.stderr
    assert "goals" in done.stdout
    assert not command.leftovers()
    assert list(output.glob(f"{name}-*.svg")) and (output / f"{name}.md").is_file()
    return json.loads((output / f"{name}.json").read_text())


def test_load_is_measured_up_to_the_highest_level(tmp_path: Path) -> None:
    found = run_benchmark("load", tmp_path)
    measured = {(each["concurrency"], each["setting"]): each for each in found["figures"]}
    assert set(measured) == {(level, setting) for level in (1, 64) for setting in SETTINGS}
    assert all(each["tokens_per_s"]["value"] > 0 for each in measured.values())
    assert len(found["goals"]) == 2


def test_drafting_ahead_and_second_passes_are_measured(tmp_path: Path) -> None:
    """Engines that wait draft ahead; a second pass is measured next to the next first one."""
    found = run_benchmark("acceleration", tmp_path, "--only", "draft-ahead", "--only", "second-pass")
    ((without, ahead),) = found["figures"]["draft-ahead"].values()
    assert without["ahead_share"] is None and ahead["ahead_share"] > 0.1
    assert without["verify_ms"] >= 24 and len(found["goals"]) == 2
    first, second, *_ = next(iter(found["figures"]["second-pass"].values()))
    assert second["forwards_per_token"] < first["forwards_per_token"]


def test_a_short_mixed_load_leaves_nothing_open_and_every_answer_as_it_was(tmp_path: Path) -> None:
    found = run_benchmark("soak", tmp_path)
    became = Counter(name for each in found["outcomes"].values() for name in each)
    assert {"done", "left", "late", "rejected"} <= became.keys()
    assert not {"wrong", "failed"} & became.keys()
    assert found["counted"]["ok"] > found["counted"]["cancelled"] > 0
    for field in ("open", "kv_tokens"):
        growth = found["figures"][field]["growth"]
        assert {each["after"] for each in growth} == {0.0} and len(growth) == 5
    for field in ("files", "tasks"):  # NOTE: a warm-up of seconds does not open all that will be used again
        growth = found["figures"][field]["growth"]
        assert all(each["after"] - each["before"] < found["counted"]["ok"] for each in growth)
