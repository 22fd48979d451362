"""`flyserve bench` as a newcomer runs it: the whole system starts, is compared, and leaves nothing behind."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest

from benchmarks.settings import SETTINGS
from tests.support.processes import ROOT

pytestmark = pytest.mark.slow

MARK = "FLYSERVE_TEST_MARK"


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
    mark = uuid.uuid4().hex
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=280, env={**os.environ, MARK: mark}
    )
    assert done.returncode == 0, done.stderr
    for setting in SETTINGS:
        assert setting in done.stdout
    measurements = json.loads(report.read_text())["measurements"]
    assert {name: len(runs) for name, runs in measurements.items()} == dict.fromkeys(SETTINGS, 6)
    assert not [process for process in psutil.process_iter() if is_marked(process, mark)]


def is_marked(process: psutil.Process, mark: str) -> bool:
    """Whether the process inherited the command's environment."""
    try:
        return process.environ().get(MARK) == mark
    except psutil.Error:
        return False
