"""Helpers of a killed process: this process adopts them, and leaves no zombie."""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest

from orchestration.local.orphans import adopted_orphans, children, reap_orphans

_HANG_S = 240.0
_KILLED = """
import subprocess, sys

helper = [sys.executable, "-c", "import sys; sys.stdin.read()"]
print(subprocess.Popen(helper, stdout=subprocess.DEVNULL).pid)
"""
"""A process that ends before its helper, which ends with its standard input."""


def becomes_true(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + _HANG_S
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def is_zombie(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans to a chosen ancestor")
def test_an_adopted_process_that_ends_is_reaped_and_an_own_one_is_not() -> None:
    with adopted_orphans(), subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"]) as own:
        assert becomes_true(lambda: is_zombie(own.pid))
        before = children()
        given, end = os.pipe()
        killed = subprocess.run(
            [sys.executable, "-c", _KILLED], stdin=given, stdout=subprocess.PIPE, text=True, check=True
        )
        os.close(given)
        orphan = int(killed.stdout)
        assert psutil.Process(orphan).ppid() == os.getpid()
        reap_orphans(before)
        assert psutil.Process(orphan).is_running() and not is_zombie(orphan)
        os.close(end)
        assert becomes_true(lambda: is_zombie(orphan))
        reap_orphans(before)
        assert not psutil.pid_exists(orphan)
        assert own.wait(_HANG_S) == 7
