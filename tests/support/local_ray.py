"""A deployment of stand-ins on a Ray of this machine, and the commands of its user."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flyserve.core.messages import Role
from orchestration.deployment.file import Deployment
from orchestration.local.runner import LocalDeployment, LocalOptions
from services.common.config import parse
from tests.support.processes import ROOT

HANG_S = 600.0
"""Ends a test that hangs; no test depends on its length."""
FOLDER = ROOT / "tests" / "support" / "ray_actors"
STANDINS = {
    Role.TARGET: "standins:StandIn",
    Role.DRAFTER: "standins:StandInDrafter",
    Role.SUB_DRAFTER: "standins:StandInSubDrafter",
}
OPTIONS = LocalOptions(actors=STANDINS, router="standin_router", startup_timeout_s=HANG_S)


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    data = {
        "target": {"model": str(tmp_path), "replicas": 2},
        "drafter": {"model": str(tmp_path)},
        "sub_drafter": {},
        "router": {"grpc_port": 0},
    }
    return parse(Deployment, data, "test")


@pytest.fixture
def small(deployment: Deployment) -> Deployment:
    """One target without helpers, where the other replicas would prove nothing."""
    target = deployment.target.model_copy(update={"replicas": 1})
    return deployment.model_copy(update={"target": target, "drafter": None, "sub_drafter": None})


def eventually(condition: Callable[[], bool], timeout_s: float = HANG_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.05)


def quiet(status: object) -> None:
    pass


def by_name(running: LocalDeployment) -> dict[str, tuple[str, int]]:
    return {status.replica: (status.address, status.generation) for status in running.status().replicas}


def command(*arguments: str) -> str:
    """Run a command in another process of this user, which finds the deployment; return its output."""
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    flyserve = str(Path(sys.executable).with_name("flyserve"))
    environment = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    environment.pop("RAY_AUTH_TOKEN")
    return subprocess.run(
        [flyserve, *arguments], env=environment, capture_output=True, text=True, timeout=HANG_S
    )
