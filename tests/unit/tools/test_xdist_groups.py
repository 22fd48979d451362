"""A suite with several workers ends also if one of them dies."""

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[3]
_CONFTEST = """
from tests.support.xdist_groups import GroupScheduling

def pytest_xdist_make_scheduler(config, log):
    return GroupScheduling(config, log)
"""
_DIES_ONCE = """
import os, pathlib

def test_before():
    pass

def test_that_ends_its_worker():
    died = pathlib.Path("died")
    if not died.exists():
        died.touch()
        os._exit(1)
"""


def test_a_worker_that_dies_is_replaced_and_no_test_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    for number in range(6):
        (tmp_path / f"test_{number}.py").write_text("def test_alone():\n    pass\n")
    (tmp_path / "test_3.py").write_text(_DIES_ONCE)
    options = ["--numprocesses", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "crashed while running 'test_3.py::test_that_ends_its_worker'" in done.stdout
    assert "1 failed, 7 passed" in done.stdout
