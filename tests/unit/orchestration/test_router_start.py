"""The router of a local deployment that is restarted: it serves what is desired then."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flyserve.core.errors import NotReady
from orchestration.deployment.file import Deployment
from orchestration.local.router_start import Desired, RouterStart
from orchestration.local.supervisor import RestartLimit, SupervisedService
from services.common.config import parse

_ROUTER = """
import pathlib, signal, sys

if "max_queued: 13" in pathlib.Path("router.yaml").read_text():
    sys.exit("error: router.max_queued: is 13")
print("ready 127.0.0.1:7 http://127.0.0.1:8", flush=True)
signal.pause()
"""
"""A router that finds a fault in one deployment."""


def desired(registry: str, model: str, **sections: Any) -> Desired:
    content = {"target": {"model": model}, "router": {"grpc_port": 0, "http_port": 0}, **sections}
    return Desired(parse(Deployment, content, "test"), registry)


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reports: list[str]
) -> Callable[..., dict[str, Any]]:
    """Start a router whose controller answers so at each start; return the configuration of the last one."""
    (tmp_path / "standin.py").write_text(_ROUTER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(*answers: Desired | Exception) -> dict[str, Any]:
        left = list(answers)

        def read() -> Desired:
            if isinstance(answer := left.pop(0), Exception):
                raise answer
            return answer

        start = RouterStart("standin", tmp_path, 240.0, desired("here:1", "/m/v1"), read)
        with SupervisedService(start, RestartLimit()) as router:
            while left:
                os.kill(router.process.pid, signal.SIGKILL)
                router.keep_up(240.0, reports.append)
        config: dict[str, Any] = yaml.safe_load((tmp_path / "router.yaml").read_text())
        return config

    return run


CHANGED = desired(
    "here:2",
    "/m/v2",
    target={"model": "/m/v2", "autoscaling": {"min": 0, "max": 2}},
    router={"grpc_port": 9, "http_port": 0, "max_queued": 7, "replica_wait_s": 300},
    rollout={"drain_s": 5},
)


def test_a_restarted_router_has_the_deployment_that_was_applied_last_at_its_old_ports(
    restart: Callable[..., dict[str, Any]],
) -> None:
    config = restart(desired("here:1", "/m/v1"), CHANGED)
    assert (config["model"], config["registry"]) == ("/m/v2", "here:2")
    assert (config["max_queued"], config["replica_wait_s"], config["grace_s"]) == (7, 300, 5)
    assert config["scales_to_zero"], "it waits for no target at its start"
    assert (config["grpc_port"], config["http_port"]) == (7, 8)


@pytest.mark.parametrize(
    "silent",
    [NotReady("the controller did not answer within 30 s"), ValueError("a key of a newer version")],
    ids=["silent", "newer"],
)
def test_without_an_answer_the_last_known_deployment_is_started(
    restart: Callable[..., dict[str, Any]], silent: Exception
) -> None:
    first = restart(silent)
    assert (first["model"], first["registry"], first["grpc_port"]) == ("/m/v1", "here:1", 0)
    assert restart(desired("here:1", "/m/v1"), CHANGED, silent)["model"] == "/m/v2"


def test_a_deployment_that_the_router_rejects_costs_one_restart_and_then_the_last_good_one_serves(
    restart: Callable[..., dict[str, Any]], reports: list[str]
) -> None:
    faulty = desired("here:2", "/m/v3", router={"grpc_port": 0, "http_port": 0, "max_queued": 13})
    assert restart(desired("here:1", "/m/v1"), CHANGED, faulty, faulty)["model"] == "/m/v2"
    _, served, ended, failed, serves = reports
    assert "serves again" in served and "restart 2 of" in ended
    assert "could not be started again: standin: router.max_queued: is 13; restart 3 of" in failed
    assert "serves again" in serves


def test_a_deployment_that_has_been_mended_is_started(restart: Callable[..., dict[str, Any]]) -> None:
    faulty = desired("here:2", "/m/v3", router={"grpc_port": 0, "http_port": 0, "max_queued": 13})
    assert restart(desired("here:1", "/m/v1"), faulty, CHANGED)["model"] == "/m/v2"
