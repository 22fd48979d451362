"""`flyserve bench` as a newcomer runs it: the whole system starts, is compared, and leaves nothing behind."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.settings import SETTINGS
from tests.support.processes import ROOT

pytestmark = pytest.mark.slow


def test_the_demo_runs_and_leaves_no_process(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [
        str(Path(sys.executable).with_name("flyserve")),
        "bench",
        "--problems",
        "6",
        "--output",
        str(report),
    ]
    before = set(psutil.pids())
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240, start_new_session=True
    )
    assert done.returncode == 0, done.stderr
    for setting in SETTINGS:
        assert setting in done.stdout
    measurements = json.loads(report.read_text())["measurements"]
    assert {name: len(runs) for name, runs in measurements.items()} == dict.fromkeys(SETTINGS, 6)
    assert not [process for process in _new_processes(before) if _is_ours(process)]


def _new_processes(before: set[int]) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if process.pid not in before]


def _is_ours(process: psutil.Process) -> bool:
    """Whether it runs from this checkout's environment or belongs to Ray."""
    try:
        words = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return "ray" in words and ("flyserve-" in words or "raylet" in words)
