import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import grpc
import psutil
import pytest

from fly.errors import ConfigError, ModelError, NotReady
from fly.messages import Role
from orchestration.deployment.file import Deployment
from orchestration.deployment.tiers import DrafterTier
from orchestration.local.runner import LocalDeployment, LocalOptions, local_deployment
from orchestration.local.supervisor import RestartLimit
from protos.flyserve.v1 import common_pb2
from protos.flyserve.v1.drafter_pb2_grpc import DrafterStub
from protos.wire.streams import info_from_wire
from services.common.config import parse

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent
STANDINS = {
    Role.TARGET: "standins:StandIn",
    Role.DRAFTER: "standins:StandInDrafter",
    Role.SUB_DRAFTER: "standins:StandInSubDrafter",
}
OPTIONS = LocalOptions(actors=STANDINS, router="standin_router")


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    data = {
        "target": {"model": str(tmp_path), "replicas": 2},
        "drafter": {"model": str(tmp_path)},
        "sub_drafter": {"engine": "ngram"},
        "router": {"grpc_port": 0},
    }
    return parse(Deployment, data, "test")


@pytest.fixture
def small(deployment: Deployment) -> Deployment:
    """One target without helpers, where the other replicas would prove nothing."""
    target = deployment.target.model_copy(update={"replicas": 1})
    return deployment.model_copy(update={"target": target, "drafter": None, "sub_drafter": None})


def eventually(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
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
    return subprocess.run([flyserve, *arguments], env=environment, capture_output=True, text=True, timeout=60)


def pid_listening_at(address: str) -> int:
    port = int(address.rpartition(":")[2])
    for process in psutil.Process().children(recursive=True):
        for connection in process.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                return process.pid
    raise AssertionError(f"nothing listens at {address}")


def test_a_killed_replica_is_restarted_until_a_signal_ends_everything(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt), local_deployment(deployment, quiet, OPTIONS) as running:
        before = by_name(running)
        assert set(before) == {"target-0", "target-1", "drafter-0", "sub_drafter-0"}
        assert all(generation == 1 for _, generation in before.values())
        shown = json.loads(command("status", "--json"))
        assert {row["replica"]: (row["address"], row["generation"]) for row in shown["replicas"]} == before
        target = psutil.Process(pid_listening_at(before["target-0"][0]))
        assert target.nice() == psutil.Process().nice(), "Ray must not lower its priority"

        os.kill(target.pid, signal.SIGKILL)

        eventually(lambda: by_name(running)["target-0"][1] == 2)
        after = by_name(running)
        assert after.pop("target-0")[0] != before.pop("target-0")[0]
        assert after == before
        assert "raylet" not in capsys.readouterr().out, "Ray's own messages must not mix with the output"
        assert command("scale", "sub_drafter=2").strip() == "sub_drafter.replicas: 1 -> 2 (scales the tier)"
        eventually(lambda: "sub_drafter-1" in by_name(running))
        (refusal,) = run("scale", "target=500").stderr.splitlines()
        assert refusal.startswith("error: target=500: there is room for ")
        assert "500 x 1 = 500 CPUs, and the nodes have 3" in refusal

        os.kill(os.getpid(), signal.SIGTERM)
        running.wait()


def test_a_drafter_without_a_model_is_scaled_and_a_router_that_ends_too_often_is_an_error(
    small: Deployment,
) -> None:
    deployment = small.model_copy(
        update={"drafter": DrafterTier(engine="suffix", response_cache_tokens=1024)}
    )
    options = replace(OPTIONS, router_restarts=RestartLimit(1, 3600.0))
    with local_deployment(deployment, quiet, options) as running:
        with grpc.insecure_channel(by_name(running)["drafter-0"][0]) as channel:
            info, load = info_from_wire(DrafterStub(channel).Info(common_pb2.InfoRequest(), timeout=60))
        assert (info.role, info.architecture, info.max_sequences) == (Role.DRAFTER, "suffix", 64)
        assert load.kv_capacity
        assert command("scale", "drafter=2").strip() == "drafter.replicas: 1 -> 2 (scales the tier)"
        eventually(lambda: "drafter-1" in by_name(running))

        assert (running.address, running.http_url) == ("127.0.0.1:1", "http://127.0.0.1:2")

        def kill_again(line: str) -> None:
            if "serves again" in line:
                os.kill(running.router.process.pid, signal.SIGKILL)

        kill_again("serves again")
        with pytest.raises(
            NotReady, match=r"ended with status -9 \(SIGKILL\); it is restarted at most 1 times"
        ):
            running.wait(kill_again)


def test_every_port_is_on_loopback_and_down_ends_it(small: Deployment) -> None:
    """SECURITY.md says so of `flyserve up`; Ray alone would listen at all interfaces."""
    before = listening_ports(psutil.Process())
    with local_deployment(small.model_copy(update={"name": "ops"}), quiet, OPTIONS) as running:
        assert command("status").startswith("ops: registry 127.0.0.1:"), "commands take the only one"
        driver = psutil.Process()
        started = driver.children(recursive=True)
        listening = [
            (process.name(), socket.laddr.ip)
            for process in (driver, *started)
            for socket in process.net_connections("inet")
            if socket.status == psutil.CONN_LISTEN
        ]
        assert running.registry.startswith("127.0.0.1:")
        assert command("down", "--grace-s", "0").strip() == "ops has ended"
        running.wait()
    assert {"gcs_server", "raylet", "ray::DashboardAgent"} <= {name for name, _ in listening}
    assert [(name, ip) for name, ip in listening if not is_loopback(ip)] == []
    # NOTE: also those that have another parent by now.
    assert [process for process in started if process.is_running()] == []
    assert listening_ports(psutil.Process()) == before


def listening_ports(process: psutil.Process) -> set[int]:
    connections = process.net_connections("inet")
    return {socket.laddr.port for socket in connections if socket.status == psutil.CONN_LISTEN}


def is_loopback(ip: str) -> bool:
    return ip_address(ip.removeprefix("::ffff:")).is_loopback


def test_a_replica_that_cannot_start_is_reported_with_the_cause(
    deployment: Deployment, tmp_path: Path
) -> None:
    options = LocalOptions(actors={**STANDINS, Role.DRAFTER: "standins:Broken"}, router="standin_router")
    with (
        pytest.raises(ModelError) as error,
        local_deployment(deployment, quiet, options),
    ):
        pass
    assert str(error.value) == f"drafter-0 cannot be started: {tmp_path}: no weights in the folder"


def test_a_start_that_takes_too_long_names_the_missing_replicas(deployment: Deployment) -> None:
    options = LocalOptions(
        actors={**STANDINS, Role.TARGET: "standins:Slow"}, router="standin_router", startup_timeout_s=40.0
    )
    with (
        pytest.raises(NotReady, match=r"of 4 replicas were not ready after 40 s: .*target-0, target-1"),
        local_deployment(deployment, quiet, options),
    ):
        pass


def test_a_failed_router_is_reported_with_the_reason(small: Deployment) -> None:
    options = LocalOptions(actors=STANDINS, router="standin_broken_router")
    with (
        pytest.raises(ConfigError, match="standin_broken_router: cannot serve"),
        local_deployment(small, quiet, options),
    ):
        pass


def test_an_interrupt_ends_everything(small: Deployment) -> None:
    with pytest.raises(KeyboardInterrupt), local_deployment(small, quiet, OPTIONS) as running:
        os.kill(os.getpid(), signal.SIGINT)
        running.wait()
