"""Three nodes, a deployment on them, 16 exact streams through a router, and every kind of fault."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyserve.cli.terminal import EXIT_TRY_LATER
from flyserve.core.errors import ConfigError
from flyserve.core.messages import Role
from orchestration.control.fleet import InstanceUnavailable
from orchestration.control.instances import Instance
from orchestration.control.status import ReplicaState
from orchestration.deployment.plan import ACTORS, ReplicaSpec
from tests.nightly.ray.cluster_rig import (
    PROMPTS,
    SIMULATED,
    Load,
    Nodes,
    Running,
    listener_at,
    model,
    process_of,
    three_nodes,
)
from tests.support.local_ray import HANG_S
from tests.support.processes import TARGET_MODEL, service


@pytest.fixture(autouse=True)
def _leaves_nothing() -> None:
    """Check nothing here: the cluster outlives each of these tests."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with three_nodes() as nodes:
        yield nodes


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "a": model(folder, "a", seed=1),
        "b": model(folder, "b", seed=2),
        "drafter": model(folder, "drafter", seed=1, agreement=0.7, base_s=0.002),
    }


@pytest.fixture(scope="module")
def running(nodes: Nodes, models: dict[str, str]) -> Iterator[Running]:
    running = Running("main", SIMULATED)
    running.apply(target={"model": models["a"], "replicas": 3}, drafter={"model": models["drafter"]})
    running.until_complete()
    yield running
    running.down()


@pytest.fixture(scope="module")
def load(running: Running, models: dict[str, str]) -> Iterator[Load]:
    flags = ("--model", models["a"], "--registry", running.registry, "--grpc-port", "0")
    with service("router", *flags) as router:
        load = Load(router.address)
        yield load
        load.close()


@pytest.fixture(scope="module")
def expected(load: Load) -> dict[str, tuple[int, ...]]:
    """The response to every prompt with the first weights, before any fault."""
    return load.answers()


def run(nodes: Nodes, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in another process; a later option overrides an earlier one."""
    flyserve = str(Path(sys.executable).with_name("flyserve"))
    name, *more = arguments
    words = [flyserve, name, "--ray-address", nodes.address, *more]
    return subprocess.run(
        words, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600
    )


def command(nodes: Nodes, *arguments: str) -> str:
    """Run a command that must succeed; return its output."""
    done = run(nodes, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_controller_is_killed_under_load(
    running: Running, load: Load, expected: dict[str, tuple[int, ...]]
) -> None:
    before = running.rows()
    with load.running() as answered:
        process_of("Controller").kill()
        num_before = len(answered)
        running.until(lambda rows: running.status().controller_starts == 2)
        running.until_complete()
        while len(answered) < num_before + 16:
            time.sleep(0.01)
    assert running.rows().keys() == before.keys()
    assert all(row.address == before[name].address for name, row in running.rows().items())
    assert all(answer == expected[prompt] for prompt, answer in answered)


def test_a_target_is_killed_under_load_while_the_controller_is_suspended(
    running: Running, load: Load, expected: dict[str, tuple[int, ...]]
) -> None:
    before = running.rows()
    controller = process_of("Controller")
    with load.running() as answered:
        controller.suspend()
        try:
            listener_at(before["target-0"].address).kill()
            num_before = len(answered)
            while len(answered) < num_before + 32:
                time.sleep(0.01)
        finally:
            controller.resume()
        running.until(lambda rows: any(row.generation > before[row.replica].generation for row in rows))
        running.until_complete()
    after = running.rows()
    assert {name for name, row in after.items() if row.address != before[name].address} == {"target-0"}
    assert all(answer == expected[prompt] for prompt, answer in answered)


def test_rays_gcs_is_suspended_under_load(
    running: Running, load: Load, nodes: Nodes, expected: dict[str, tuple[int, ...]]
) -> None:
    before = running.rows()
    with load.running() as answered, nodes.gcs_suspended():
        begin = time.monotonic()
        while time.monotonic() < begin + 4 or len(answered) < 32:
            time.sleep(0.01)
    running.until_complete()
    assert all(answer == expected[prompt] for prompt, answer in answered)
    assert {name: row.address for name, row in running.rows().items()} == {
        name: row.address for name, row in before.items()
    }


def test_a_node_is_killed_under_load_and_replaced(
    running: Running, load: Load, nodes: Nodes, expected: dict[str, tuple[int, ...]]
) -> None:
    before = running.rows()
    drafters_node = before["drafter-0"].node
    import ray

    head = ray.get_runtime_context().get_node_id()
    ids = {node["NodeID"][:8]: node["NodeID"] for node in ray.nodes()}
    lost = [row for row in before.values() if row.role is Role.TARGET and head[:8] not in row.node]
    victim = next((row for row in lost if row.node == drafters_node), lost[0])
    with load.running() as answered:
        nodes.kill(ids[victim.node.rpartition("(")[2][:8]])
        running.until(lambda rows: any(row.generation > before[row.replica].generation for row in rows))
        running.until_complete()
    assert all(answer == expected[prompt] for prompt, answer in answered)
    assert victim.node not in {row.node for row in running.rows().values()}
    back = nodes.add()[:8]
    running.handle.drain.remote("target-1", False)
    running.until(lambda rows: any(back in row.node and row.state is ReplicaState.READY for row in rows))
    running.until_complete()


def test_a_node_is_left_under_load_before_it_ends(
    nodes: Nodes, running: Running, load: Load, expected: dict[str, tuple[int, ...]]
) -> None:
    from orchestration.ray.leaving import leave_node

    place = nodes.add()
    running.handle.drain.remote("target-0", False)
    running.until(lambda rows: any(place[:8] in row.node for row in rows))
    running.until_complete()
    with load.running() as answered:
        leave_node(running.handle, place, timeout_s=HANG_S)
        assert not any(place[:8] in row.node for row in running.rows().values())
        nodes.kill(place)
        running.until_complete()
    assert answered and all(answer == expected[prompt] for prompt, answer in answered)


def test_all_targets_are_replaced_by_other_weights_under_load(
    running: Running, load: Load, models: dict[str, str], expected: dict[str, tuple[int, ...]]
) -> None:
    with load.running() as answered:
        report = running.apply(
            target={"model": models["b"], "replicas": 3}, drafter={"model": models["drafter"]}
        )
        running.until(lambda rows: any(not row.is_current for row in rows))
        running.until_complete()
    assert [change.key for change in report.changes] == ["target.model"]
    new = load.answers()
    assert all(expected[prompt] != new[prompt] for prompt in expected)
    assert {answer == new[prompt] for prompt, answer in answered} == {True, False}
    assert all(answer in (expected[prompt], new[prompt]) for prompt, answer in answered)


def test_replicas_without_room_are_reported_and_the_others_serve(running: Running, load: Load) -> None:
    from orchestration.ray.controller_client import get_result

    refusal = (
        r"target=14: there is room for \d+: 14 x 1 = 14 CPUs, and the nodes have \d+, 1 of them for other"
    )
    with pytest.raises(ConfigError, match=refusal):
        get_result(running.handle.scale.remote({Role.TARGET: 14}), HANG_S)
    get_result(running.handle.scale.remote({Role.TARGET: 14}, True), HANG_S)
    running.until(lambda rows: any(row.state is ReplicaState.PENDING for row in rows))
    pending = next(row for row in running.rows().values() if row.state is ReplicaState.PENDING)
    assert "no node has room for 1 CPUs at present" in pending.detail
    assert "flyserve scale target=N" in pending.remedy
    assert load.generate("prompt 0")
    with pytest.raises(ConfigError, match=r"target.replicas: is 5000: .* at most 1024"):
        get_result(running.handle.scale.remote({Role.TARGET: 5000}), HANG_S)
    get_result(running.handle.scale.remote({Role.TARGET: 1}), HANG_S)
    running.until_complete()


def test_replicas_follow_the_load_and_no_stream_is_cut(nodes: Nodes, models: dict[str, str]) -> None:
    elastic = Running("elastic", SIMULATED)
    delays = {"upscale_delay_s": 1, "downscale_delay_s": 2}
    targets = {"model": models["a"], "max_sequences": 4, "autoscaling": {"max": 4, **delays}}
    drafters = {"model": models["drafter"], "max_sequences": 8, "autoscaling": {"max": 2, **delays}}
    elastic.apply(target=targets, drafter=drafters)
    elastic.until_complete()
    flags = ("--model", models["a"], "--registry", elastic.registry, "--grpc-port", "0")
    with service("router", *flags) as router:
        load = Load(router.address)
        with load.running() as answered:
            elastic.until_number(targets=4, drafters=2)
        with load.running(PROMPTS[:2]) as later:
            elastic.until_number(targets=1, drafters=1)
        load.close()
    assert len({*answered, *later}) == len(PROMPTS), "every prompt must have one response"
    assert load.num_replays == 0
    elastic.down()


def test_routers_move_to_a_second_deployment_under_load_and_the_first_one_ends(
    nodes: Nodes, models: dict[str, str]
) -> None:
    """The steps of `flyserve upgrade`: green beside blue, routers to green, blue removed."""
    tiers = {"target": {"model": models["a"], "replicas": 2}, "drafter": {"model": models["drafter"]}}
    blue, green = (Running(color, SIMULATED) for color in ("blue", "green"))
    for color in (blue, green):
        color.apply(**tiers)
        color.until_complete()
    flags = [
        ("--model", models["a"], "--registry", color.registry, "--grpc-port", "0") for color in (blue, green)
    ]
    with service("router", *flags[0]) as old, service("router", *flags[1]) as new:
        # Its next address: where the Service leads once the old router has left it.
        load = Load(old.address, new.address)
        expected = load.answers()
        with load.running() as answered:
            while len(answered) < len(PROMPTS):
                time.sleep(0.05)
            old.process.terminate()
            assert old.process.wait(HANG_S) == 0, "it finishes its requests"
            blue.down()
            before = len(answered)
            while len(answered) < before + 2 * len(PROMPTS):
                time.sleep(0.05)
        load.close()
    assert all(answer == expected[prompt] for prompt, answer in answered)
    green.down()


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
        ({}, ("--name", "missing"), "no deployment has the name missing; running: main"),
    ],
)
def test_a_command_that_cannot_connect_reports_the_reason_in_one_line(
    running: Running, nodes: Nodes, environment: dict[str, str], arguments: tuple[str, ...], message: str
) -> None:
    done = run(nodes, "status", *arguments, **environment)
    (line,) = [line for line in done.stderr.splitlines() if line.strip()]
    assert done.returncode != 0
    assert line.startswith("error: ")
    assert message in line
