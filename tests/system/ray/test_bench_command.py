"""`flyserve bench` as a newcomer runs it: the whole system starts, is compared, and leaves nothing behind."""

import json
import subprocess
import sys
from pathlib import Path

from flyserve.bench.comparison import SETTINGS
from tests.support.leftovers import MarkedCommand
from tests.support.processes import ROOT

PROBLEMS = 3


def test_the_demo_runs_and_leaves_no_process(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [
        str(Path(sys.executable).with_name("flyserve")),
        "bench",
        "--problems",
        str(PROBLEMS),
        "--output",
        str(report),
    ]
    marked = MarkedCommand()
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=600, env=marked.environment
    )
    assert done.returncode == 0, done.stderr
    for setting in SETTINGS:
        assert setting in done.stdout
    measurements = json.loads(report.read_text())["measurements"]
    assert {name: len(runs) for name, runs in measurements.items()} == dict.fromkeys(SETTINGS, PROBLEMS)
    assert not marked.leftovers()
