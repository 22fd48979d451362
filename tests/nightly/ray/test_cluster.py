"""Three nodes, a deployment on them, 16 exact streams through a router, and every kind of fault."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from flyserve.core.errors import ConfigError
from flyserve.core.messages import Role
from orchestration.control.status import ReplicaState
from orchestration.deployment.diff import Effect
from orchestration.deployment.file import DeploymentTelemetry
from orchestration.deployment.tiers import BuiltinDrafter, BuiltinTarget, SuffixSubDrafter
from orchestration.ray.controller_client import HEAD_RESOURCE
from services.common.config import Config
from tests.nightly.ray.cluster_rig import (
    PROMPTS,
    SIMULATED,
    Load,
    Nodes,
    Running,
)
from tests.support.config_values import other_values
from tests.support.descendants import listener_at, titled
from tests.support.local_ray import HANG_S
from tests.support.processes import service

ELSEWHERE = {"model", "engine", "replicas", "autoscaling", "shards", "gpus", "vocabulary"}
"""Keys whose change another test shows, or that simulated engines do not have."""


@pytest.fixture(autouse=True)
def _leaves_nothing() -> None:
    """Check nothing here: the cluster outlives each of these tests."""


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


def test_the_controller_is_killed_under_load(
    running: Running, load: Load, expected: dict[str, tuple[int, ...]]
) -> None:
    before = running.rows()
    with load.running() as answered:
        (controller,) = titled("ray::Controller")
        controller.kill()
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
    (controller,) = titled("ray::Controller")
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


def rolling_values() -> dict[str, dict[str, Any]]:
    """Return another value of every key whose change replaces replicas without a gap, by section."""
    builtin: tuple[type[Config], ...] = (BuiltinTarget, BuiltinDrafter, SuffixSubDrafter)
    tiers = zip(Role, builtin, strict=True)
    found = {role.value: dict(other_values([tier])) for role, tier in tiers}
    found["telemetry"] = dict(other_values([DeploymentTelemetry]))
    keys = {
        section: {key: value for key, value in values.items() if key.partition(".")[0] not in ELSEWHERE}
        for section, values in found.items()
    }
    keys["target"] |= {"max_model_len": 4096, "node_resource": HEAD_RESOURCE}
    keys["drafter"] |= {"max_model_len": 4096}
    keys["telemetry"]["metrics_port"] = 0
    # NOTE: the head has room for three targets of one thread.
    del keys["target"]["threads"], keys["drafter"]["node_resource"], keys["sub_drafter"]["node_resource"]
    return keys


def test_every_key_that_replaces_replicas_is_applied_under_load(
    running: Running, load: Load, models: dict[str, str]
) -> None:
    sections: dict[str, dict[str, Any]] = {
        "target": {"model": models["a"], "replicas": 2},
        "drafter": {"model": models["drafter"]},
        "sub_drafter": {"engine": "suffix"},
        "telemetry": {},
    }
    running.apply(**sections)
    running.until_complete()
    expected = load.answers()
    for section, values in rolling_values().items():
        sections[section] |= values
        with load.undisturbed(f"{len(values)} keys of {section}", expected):
            report = running.apply(**sections)
            assert {change.key for change in report.changes} == {f"{section}.{key}" for key in values}
            assert {change.effect for change in report.changes} <= {Effect.REPLACES, Effect.REPLACES_ALL}
            running.until(lambda rows: any(not row.is_current for row in rows))
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
