"""Three nodes: what a deployment on them reports, and the commands of its user."""

import json
import socket
import time
from pathlib import Path

import pytest

from flyserve.cli.terminal import EXIT_TRY_LATER
from flyserve.core.errors import ConfigError
from flyserve.core.messages import Role
from orchestration.control.fleet import InstanceUnavailable
from orchestration.control.instances import Instance
from orchestration.control.status import ReplicaState
from orchestration.deployment.plan import ACTORS, ReplicaSpec
from tests.nightly.ray.cluster_rig import SIMULATED, Nodes, Running, command, run
from tests.support.descendants import listener_at
from tests.support.processes import TARGET_MODEL


@pytest.fixture(autouse=True)
def _leaves_nothing() -> None:
    """Check nothing here: the cluster outlives each of these tests."""


def test_shards_share_a_node_and_a_missing_model_is_reported(nodes: Nodes, tmp_path: Path) -> None:
    shared = Running("shared", {Role.TARGET: "standins:SharedStandIn"})
    shared.apply(target={"model": str(tmp_path), "shards": 3, "replicas": 2})
    shared.until_complete()
    assert len({row.node for row in shared.rows().values()}) == 2
    import ray

    nodes_of: dict[str, set[str]] = {}
    for table in ray.util.placement_group_table().values():
        if table["state"] == "CREATED" and len(table["bundles"]) == 3:
            nodes_of[table["name"]] = set(table["bundles_to_node_id"].values())
    assert {name: len(ids) for name, ids in nodes_of.items()} == {
        "flyserve-shared/target-0.1": 1,
        "flyserve-shared/target-1.1": 1,
    }
    shared.down()
    missing = Running("missing", SIMULATED)
    missing.apply(target={"model": str(tmp_path / "gone")})
    missing.until(lambda rows: any(row.state is ReplicaState.FAILED for row in rows))
    failed = missing.rows()["target-0"]
    assert "no such model on this node" in failed.detail
    assert "every node" in failed.remedy
    missing.down()


def test_a_lost_target_gets_its_gpu_back_before_a_drafter_that_waits_for_it(
    nodes: Nodes, tmp_path: Path
) -> None:
    nodes.add(num_gpus=1)
    tight = Running("tight", {Role.TARGET: "standins:StandIn", Role.DRAFTER: "standins:StandInDrafter"})
    tier = {"model": str(tmp_path), "gpus": 1}
    tight.apply(target=tier)
    tight.until_complete()
    tight.apply(target=tier, drafter=tier)
    tight.until(lambda rows: any("no node has room for 1 CPUs and 1 GPUs" in row.detail for row in rows))
    listener_at(tight.rows()["target-0"].address).kill()
    tight.until(lambda rows: any(row.generation == 2 and row.state is ReplicaState.READY for row in rows))
    rows = tight.rows()
    assert (rows["target-0"].generation, rows["target-0"].state) == (2, ReplicaState.READY)
    tight.until(lambda rows: any("no node has room for 1 CPUs and 1 GPUs" in row.detail for row in rows))
    tight.down()


async def test_a_group_without_a_large_enough_node_is_reported(nodes: Nodes) -> None:
    from orchestration.ray.fleet import RayFleet

    spec = ReplicaSpec(Role.TARGET, "target-0", ACTORS[Role.TARGET], 8.0, {}, shards=2)
    replica = await RayFleet("large").start(Instance(spec, 1), "127.0.0.1:1")
    with pytest.raises(InstanceUnavailable, match=r"no node is large enough for 2 shards of 8 CPUs: .* 4"):
        await replica.node()
    await replica.stop()
    await replica.stop()


def test_a_registrys_port_that_is_taken_is_rejected_with_its_key(nodes: Nodes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"controller.port: .*:{port} is in use: choose"):
            _ = Running("taken", {}, port).registry


def test_a_deployment_outlives_the_command_that_applied_it(nodes: Nodes, tmp_path: Path) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(f"name: cli\ntarget: {{model: {TARGET_MODEL}, max_sequences: 4, kv_tokens: 4096}}\n")
    created, registry = command(nodes, "apply", str(file)).splitlines()
    assert created == "cli: created"
    named = ("--name", "cli")
    before = json.loads(command(nodes, "status", "--json", *named))

    listener_at(registry.removeprefix("registry ")).kill()
    after = before
    while after["controller_starts"] == 1:
        done = run(nodes, "status", "--json", *named)
        assert done.returncode in (0, EXIT_TRY_LATER), done.stderr
        after = json.loads(done.stdout or "null") or after
    (row,) = after["replicas"]
    assert (row["address"], row["state"]) == (before["replicas"][0]["address"], "ready")

    assert command(nodes, "scale", "target=2", *named) == "target.replicas: 1 -> 2 (scales the tier)\n"
    ready = {"target 2/2"}
    while not ready & set(command(nodes, "status", *named).splitlines()):
        time.sleep(0.1)
    assert command(nodes, "down", "--grace-s", "0", *named) == "cli has ended\n"


@pytest.mark.parametrize(
    ("environment", "arguments", "message"),
    [
        ({"RAY_AUTH_TOKEN": "0" * 64}, (), "RAY_AUTH_TOKEN is not the token of the Ray cluster at"),
        ({}, ("--ray-address", "127.0.0.1:1"), "no Ray answers at 127.0.0.1:1"),
        ({}, ("--name", "missing"), "no deployment has the name missing; none is running"),
    ],
)
def test_a_command_that_cannot_connect_reports_the_reason_in_one_line(
    nodes: Nodes, environment: dict[str, str], arguments: tuple[str, ...], message: str
) -> None:
    done = run(nodes, "status", *arguments, **environment)
    (line,) = [line for line in done.stderr.splitlines() if line.strip()]
    assert done.returncode != 0
    assert line.startswith("error: ")
    assert message in line
