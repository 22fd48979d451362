"""Settings of all tests: examples without deadlines, default signals, Ray's token set before its import."""

import logging
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import settings

from flyserve.signals import stop_signals
from orchestration.local.local_ray import prepare_environment
from services.common.garbage import exempt_from_collection
from services.common.machine.machine import usable_cores
from tests.support.xdist_groups import GroupScheduling, rank

# NOTE: continuous integration tries the same examples each time; local runs try new ones.
settings.register_profile("flyserve", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("flyserve")

# NOTE: what a user's shell sets would change colours, widths, the repository, or the way to loopback.
for _name in list(os.environ):
    if _name.startswith("GIT_") or _name in (
        *("COLUMNS", "LINES", "TERMINAL_WIDTH", "FORCE_COLOR", "NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS"),
        *("TTY_COMPATIBLE", "TTY_INTERACTIVE", "RAY_ADDRESS", "FLYSERVE_ADDRESS", "FLYSERVE_TOKEN"),
    ):
        del os.environ[_name]
os.environ["no_proxy"] = os.environ["NO_PROXY"] = "127.0.0.1,localhost,::1"

# NOTE: in the background or under `nohup` these are ignored, and so they would be in processes of tests.
for _number, _handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _handler)

# NOTE: Ray reads its token once per process, at its first import, in whichever test that happens.
prepare_environment()


def pytest_xdist_auto_num_workers() -> int:
    """Return one more than there are CPUs: tests of whole systems wait much of the time."""
    return min(8, usable_cores()) + 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    # A test that does the work of a whole process sets the level of all logs, and may receive a signal by
    # which it ends: later tests read both.
    root = logging.getLogger()
    level = root.level
    try:
        return (yield)
    finally:
        root.setLevel(level)
        stop_signals.first = None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.nodeid))


def pytest_collection_finish() -> None:
    # A collection of all that the tests have imported would stop one for 0.2 s, and those that it talks to.
    exempt_from_collection()


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> GroupScheduling | None:
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadfile" else None
