"""The scenario `real` in its quick form; needs `make real` and `make workloads`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness import workloads
from demo.real.fetch import GEMMA3, SMOLLM2
from tests.nightly.real.conftest import fetched
from tests.support.leftovers import MarkedCommand
from tests.support.processes import ROOT

pytestmark = pytest.mark.timeout(3600)


def test_every_part_is_measured_and_drafts_leave_the_cache_of_prefixes_as_it_is(tmp_path: Path) -> None:
    for model in (GEMMA3, SMOLLM2):
        fetched(model)
    if not (os.environ.get(workloads.VARIABLE) or workloads._MADE.exists()):
        pytest.skip("the packages are not here: `make workloads` installs them")
    command = MarkedCommand()
    run = [sys.executable, "-m", "benchmarks", "real", "--quick", "--output", str(tmp_path)]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, env=command.environment)
    assert done.returncode == 0, done.stderr
    assert not command.leftovers()
    found = json.loads((tmp_path / "real.json").read_text())
    assert tuple(found["runs"]) == workloads.WORKLOADS
    for part, pairs in found["figures"].items():
        for rows in pairs.values():
            assert all((row["accuracy"] is None) == (part in ("chat", "agents")) for row in rows)
            assert all(row["tokens_per_s"] > 0 for row in rows)
    for rows in found["figures"]["agents"].values():
        plain, *drafted = (row["cached_share"] for row in rows)
        assert plain > 0.01 and all(share == pytest.approx(plain, rel=0.01) for share in drafted)
