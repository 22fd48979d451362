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
    assert not command.leftovers()
    assert list(output.glob(f"{name}-*.svg")) and (output / f"{name}.md").is_file()
    return json.loads((output / f"{name}.json").read_text())


def test_load_is_measured_up_to_the_highest_level(tmp_path: Path) -> None:
    found = run_benchmark("load", tmp_path, "--part", "levels")["parts"]["levels"]
    measured = {(each["concurrency"], each["setting"]): each for each in found["figures"]}
    assert set(measured) == {(level, setting) for level in (1, 64) for setting in SETTINGS}
    assert all(each["tokens_per_s"]["value"] > 0 for each in measured.values())


def test_drafting_ahead_is_measured(tmp_path: Path) -> None:
    found = run_benchmark("acceleration", tmp_path, "--part", "draft-ahead")
    ((without, ahead),) = found["figures"]["draft-ahead"].values()
    assert without["ahead_share"] is None and ahead["ahead_share"] > 0.1
    assert without["verify_ms"] >= 24 and len(found["goals"]) == 1


def test_peers_are_measured_part_by_part(tmp_path: Path) -> None:
    run_benchmark("peers", tmp_path, "--part", "demo-1")
    found = run_benchmark("peers", tmp_path, "--part", "demo-2", "--join")
    assert list(found["runs"]) == ["demo-1", "demo-2"] and found["plan"]["prompts"] == 1
    for part in found["runs"].values():
        ways = part["demo problems"]
        assert {"published FLy loop", "transformers assisted", "FlyServe FLy"} < ways.keys()
        assert all(run["statistics"]["emitted"] > 0 for runs in ways.values() for run in runs)
    page = (tmp_path / "peers.md").read_text()
    assert "demo problems, 1 thread | demo problems, 2 threads |" in page


def test_a_short_mixed_load_leaves_nothing_open_and_every_answer_as_it_was(tmp_path: Path) -> None:
    found = run_benchmark("soak", tmp_path)
    became = Counter(name for each in found["outcomes"].values() for name in each)
    assert {"done", "left", "late", "rejected"} <= became.keys()
    assert not {"wrong", "failed"} & became.keys()
    assert found["counted"]["ok"] > found["counted"]["cancelled"] > 0
    left = [each for each in found["figures"] if each["watched"].startswith(("open sequences", "KV"))]
    assert {each["after"] for each in left} == {0.0} and len(left) == 2 * 5
    # NOTE: a warm-up of seconds does not open all that will be used again.
    assert all(each["after"] - each["before"] < found["counted"]["ok"] for each in found["figures"])
