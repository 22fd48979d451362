"""`flyserve up` on a Ray of this machine: faults, commands, ports, and its end."""

import json
import os
import signal
from ipaddress import ip_address

import psutil
import pytest
import yaml

from flyserve.core.errors import NotReady
from orchestration.deployment.file import Deployment
from orchestration.local.runner import local_deployment
from orchestration.ray.controller_client import get_result, has_controller
from tests.support.descendants import listener_at, listeners
from tests.support.local_ray import (
    HANG_S,
    OPTIONS,
    by_name,
    command,
    eventually,
    quiet,
    run,
)


def test_what_is_killed_is_restarted_as_it_was_applied_last_until_a_signal_ends_everything(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt), local_deployment(deployment, quiet, OPTIONS) as running:
        before = by_name(running)
        assert set(before) == {"target-0", "target-1", "drafter-0", "sub_drafter-0"}
        assert all(generation == 1 for _, generation in before.values())
        shown = json.loads(command("status", "--json"))
        assert {row["replica"]: (row["address"], row["generation"]) for row in shown["replicas"]} == before
        target = listener_at(before["target-0"][0])
        assert target.nice() == psutil.Process().nice(), "Ray must not lower its priority"

        os.kill(target.pid, signal.SIGKILL)

        eventually(lambda: by_name(running)["target-0"][1] == 2)
        after = by_name(running)
        assert after.pop("target-0")[0] != before.pop("target-0")[0]
        assert after == before
        assert "raylet" not in capsys.readouterr().out, "Ray's own messages must not mix with the output"
        assert command("scale", "sub_drafter=2").strip() == "sub_drafter.replicas: 1 -> 2 (scales the tier)"
        eventually(lambda: "sub_drafter-1" in by_name(running))
        router = deployment.router.model_copy(update={"max_queued": 7})
        changed = deployment.model_copy(update={"router": router}).model_dump_json()
        get_result(running.controller.apply.remote(changed, "", False), HANG_S)
        process = running.router.process
        os.kill(process.pid, signal.SIGKILL)
        running.router.keep_up(HANG_S, quiet)
        assert yaml.safe_load((process.log.parent / "router.yaml").read_text())["max_queued"] == 7
        assert running.router.process.addresses == process.addresses
        (refusal,) = run("scale", "target=500").stderr.splitlines()
        assert refusal.startswith("error: target=500: there is room for ")
        assert "500 x 1 = 500 CPUs, and the nodes have 3" in refusal

        os.kill(os.getpid(), signal.SIGTERM)
        running.wait()


def test_every_port_is_on_loopback_and_down_ends_it(small: Deployment) -> None:
    """SECURITY.md says so of `flyserve up`; Ray alone would listen at all interfaces."""
    before = listening_ports(psutil.Process())
    with local_deployment(small.model_copy(update={"name": "ops"}), quiet, OPTIONS) as running:
        assert command("status").startswith("ops: registry 127.0.0.1:"), "commands take the only one"
        driver = psutil.Process()
        started = driver.children(recursive=True)
        listening = [(name, place.ip) for _, name, place in listeners((driver, *started))]
        assert running.registry.startswith("127.0.0.1:")
        assert command("down", "--grace-s", "0").strip() == "ops has ended"
        running.wait()
    assert {"gcs_server", "raylet", "ray::DashboardAgent"} <= {name for name, _ in listening}
    assert [(name, ip) for name, ip in listening if not is_loopback(ip)] == []
    # NOTE: also those that have another parent by now.
    assert [process for process in started if process.is_running()] == []
    assert listening_ports(psutil.Process()) == before


def test_the_controller_ends_even_if_the_caller_of_down_has_gone(small: Deployment) -> None:
    """A caller that is still there ends it at once, by `ray.kill`; none does here."""
    with local_deployment(small.model_copy(update={"name": "left"}), quiet, OPTIONS) as running:
        both = [running.controller.down.remote(0.0) for _ in range(2)]
        assert [get_result(down, HANG_S) for down in both] == [None, None]
        assert get_result(running.controller.down.remote(0.0), HANG_S) is None
        with pytest.raises(NotReady, match="has ended"):
            running.status()
        running.wait()
        assert not has_controller("left")


def listening_ports(process: psutil.Process) -> set[int]:
    connections = process.net_connections("inet")
    return {socket.laddr.port for socket in connections if socket.status == psutil.CONN_LISTEN}


def is_loopback(ip: str) -> bool:
    return ip_address(ip.removeprefix("::ffff:")).is_loopback
