"""A deployment manager over a fake fleet: it adopts, replaces, drains, rejects, and persists first."""

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flyserve.core.errors import ConfigError, NotReady
from flyserve.core.messages import Role
from flyserve.wire.streams import info_to_wire
from orchestration.control import executor
from orchestration.control.fleet import InstanceRejected, InstanceUnavailable
from orchestration.control.status import ReplicaState
from orchestration.deployment.file import Deployment
from tests.unit.orchestration import manager_rig
from tests.unit.orchestration.manager_rig import FILE, FakeInstance, Scene, deployment


async def test_a_restarted_manager_adopts_running_replicas_without_a_change_for_routers(scene: Scene) -> None:
    await scene.manager.apply(deployment(), FILE)
    await scene.until_ready("target-0.1", "target-1.1")
    before = scene.manager.registry.snapshot
    await scene.restart()
    assert scene.manager.registry.snapshot.endpoints == before.endpoints
    await scene.until_ready("target-0.1", "target-1.1")
    assert scene.fleet.alive() == {"target-0.1", "target-1.1"}
    assert (await scene.manager.status()).controller_starts == 2
    assert not (await scene.manager.apply(deployment(), FILE)).changes


async def test_a_restarted_manager_restarts_what_has_ended_and_stops_orphans(
    scene: Scene,
) -> None:
    await scene.manager.apply(deployment(), FILE)
    await scene.until_ready("target-0.1", "target-1.1")
    await scene.manager.stop()
    await scene.fleet.replicas["target-0.1"].stop()
    orphan = scene.fleet.replicas["target-9.1"] = FakeInstance("a")
    await scene.restart()
    await scene.until_ready("target-0.2", "target-1.1")
    assert orphan.is_stopped


async def test_an_alarm_of_a_router_is_shown_at_the_replica_that_serves(scene: Scene) -> None:
    await scene.manager.apply(deployment(), FILE)
    await scene.until_ready("target-0.1", "target-1.1")
    scene.manager.registry.report("a-router", 0, {"target-1": "it never agrees"})
    rows = {row.replica: row for row in (await scene.manager.status()).replicas}
    assert (rows["target-0"].detail, rows["target-1"].detail) == ("", "it never agrees")
    assert rows["target-1"].state is ReplicaState.READY
    await scene.fleet.replicas["target-1.1"].crash()
    await scene.until(lambda rows: rows.keys() != {"target-0.1", "target-1.1"})
    rows = {row.replica: row for row in (await scene.manager.status()).replicas}
    assert "it never agrees" not in rows["target-1"].detail or rows["target-1"].state is ReplicaState.READY


async def test_a_target_whose_rows_depend_on_their_batch_is_shown(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_rig, "INFO", replace(manager_rig.INFO, row_invariant=False))
    await scene.manager.apply(deployment(), FILE)
    await scene.until_ready("target-0.1", "target-1.1")
    scene.manager.registry.report("a-router", 0, {"target-1": "it never agrees"})
    rows = {row.replica: row.detail for row in (await scene.manager.status()).replicas}
    assert rows == {"target-0": "row_invariant: false", "target-1": "it never agrees"}


async def test_targets_with_different_kernels_are_shown(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def info(self: FakeInstance, request: Any, context: Any) -> Any:
        return info_to_wire(replace(manager_rig.INFO, kernels=f"port {self.host.address[-5:]}"), self.load)

    monkeypatch.setattr(FakeInstance, "Info", info)
    await scene.manager.apply(deployment(), FILE)
    await scene.until_ready("target-0.1", "target-1.1")
    rows = (await scene.manager.status()).replicas
    expected = [f"kernels port {row.address[-5:]}"[:16] + ", not those of all targets" for row in rows]
    assert [row.detail for row in rows] == expected


async def test_a_crashed_replica_is_restarted_with_the_next_generation(scene: Scene) -> None:
    await scene.manager.apply(deployment(), FILE)
    await scene.until_ready("target-0.1", "target-1.1")
    await scene.fleet.replicas["target-1.1"].crash()
    await scene.until_ready("target-0.1", "target-1.2")
    assert scene.fleet.replicas["target-1.1"].is_stopped


async def test_other_weights_replace_every_target_but_scaling_replaces_none(scene: Scene) -> None:
    await scene.manager.apply(deployment(), FILE)
    await scene.until_ready("target-0.1", "target-1.1")
    changed = deployment(target={"model": "/m/other", "replicas": 2})
    report = await scene.manager.apply(changed, FILE)
    assert [str(change) for change in report.changes] == [
        "target.model: /m/big -> /m/other (replaces the tier's replicas, one by one)"
    ]
    await scene.until_ready("target-0.2", "target-1.2")
    assert scene.fleet.replicas["target-0.1"].drained_within_s is not None
    await scene.manager.scale({Role.TARGET: 3})
    await scene.until_ready("target-0.2", "target-1.2", "target-2.1")
    assert not (await scene.manager.apply(changed, FILE)).changes, "the file says nothing new"
    await scene.manager.scale({Role.TARGET: 1})
    await scene.until_ready("target-0.2")


async def test_the_desired_deployment_is_the_one_that_was_applied_last(scene: Scene) -> None:
    assert scene.manager.deployment is None
    await scene.manager.apply(deployment(), FILE)
    await scene.manager.apply(deployment(router={"max_queued": 7}), FILE)
    assert scene.manager.deployment is not None
    assert scene.manager.deployment.router.max_queued == 7


async def test_a_drained_replica_is_replaced_elsewhere(scene: Scene) -> None:
    await scene.manager.apply(deployment(target={"model": "/m/big"}), FILE)
    before = await scene.until_ready("target-0.1")
    with pytest.raises(ConfigError, match="target-7: test has no such replica, but target-0"):
        await scene.manager.drain("target-7", at_once=False)
    await scene.manager.drain("target-0", at_once=False)
    after = await scene.until_ready("target-0.2")
    assert before["target-0.1"].node != after["target-0.2"].node


async def test_a_node_that_ends_is_left_by_all_its_replicas(scene: Scene) -> None:
    await scene.manager.apply(deployment(target={"model": "/m/big", "replicas": 4}), FILE)
    before = await scene.until_ready(*(f"target-{n}.1" for n in range(4)))
    assert [row.node for row in before.values()].count("node a") == 2
    leaving = {name for name, row in before.items() if row.node == "node a"}
    assert set(await scene.manager.leave_node("a", is_urgent=False)) == leaving
    after = await scene.until(
        lambda rows: len(rows) == 4 and all(row.state is ReplicaState.READY for row in rows.values())
    )
    assert {row.node for row in after.values()} == {"node b"}
    assert await scene.manager.leave_node("a", is_urgent=False) == ()
    drained = {name for name in before if scene.fleet.replicas[name].drained_within_s is not None}
    assert drained == leaving
    # None comes back, however much room there is.
    await scene.manager.scale({Role.TARGET: 6})
    rows = await scene.until(lambda rows: len(rows) == 6 and all(row.node for row in rows.values()))
    assert {row.node for row in rows.values()} == {"node b"}


async def test_the_only_replica_serves_on_until_its_successor_does_or_it_is_urgent(scene: Scene) -> None:
    await scene.manager.apply(deployment(target={"model": "/m/big"}), FILE)
    before = await scene.until_ready("target-0.1")
    place = before["target-0.1"].node.removeprefix("node ")
    scene.fleet.faults["target-0"] = InstanceUnavailable("no node has room")
    assert await scene.manager.leave_node(place, is_urgent=False) == ("target-0.1",)
    await scene.until(lambda rows: len(rows) == 2)
    assert scene.fleet.replicas["target-0.1"].drained_within_s is None
    await scene.manager.leave_node(place, is_urgent=True)
    await scene.until(lambda rows: "target-0.1" not in rows)
    assert scene.fleet.replicas["target-0.1"].drained_within_s is not None


async def test_a_model_that_cannot_be_served_is_reported_with_the_remedy(scene: Scene) -> None:
    scene.fleet.faults["target-0"] = InstanceRejected("/m/big: no weights in the folder")
    await scene.manager.apply(deployment(), FILE)
    rows = await scene.until(lambda rows: any(row.state is ReplicaState.FAILED for row in rows.values()))
    (failed,) = [row for row in rows.values() if row.state is ReplicaState.FAILED]
    assert failed.detail.startswith("/m/big: no weights in the folder")
    assert "every node" in failed.remedy
    del scene.fleet.faults["target-0"]
    await scene.until(
        lambda rows: all(row.state is ReplicaState.READY and not row.detail for row in rows.values())
    )


async def test_a_replica_that_waits_for_room_is_reported_with_the_remedy(scene: Scene) -> None:
    scene.fleet.faults["target-1"] = InstanceUnavailable(
        "no node is large enough for 9 CPUs: the largest has 8"
    )
    await scene.manager.apply(deployment(), FILE)
    rows = await scene.until(lambda rows: any(row.state is ReplicaState.PENDING for row in rows.values()))
    (pending,) = [row for row in rows.values() if row.state is ReplicaState.PENDING]
    assert (pending.replica, pending.detail[:23]) == ("target-1", "no node is large enough")
    assert "target.threads" in pending.remedy


async def test_no_replica_is_started_before_the_state_is_persisted(scene: Scene) -> None:
    scene.storage.is_unavailable = True
    await scene.manager.apply(deployment(), FILE)
    async with asyncio.timeout(240):
        while not any("no answer" in note for note in (await scene.manager.status()).notes):
            await asyncio.sleep(0.01)
    assert not scene.fleet.replicas
    scene.storage.is_unavailable = False
    await scene.until_ready("target-0.1", "target-1.1")
    assert not (await scene.manager.status()).notes


@pytest.mark.parametrize(
    ("more", "source", "message"),
    [
        ({}, "/etc/two.yaml", "name: test already runs from /etc/one.yaml"),
        ({"controller": {"port": 5}}, FILE, "controller.port: 0 -> 5 .cannot be changed while"),
        ({"name": "other"}, FILE, "name: default -> other .cannot be changed while"),
    ],
)
async def test_a_change_that_cannot_be_applied_in_place_is_rejected(
    scene: Scene, more: dict[str, Any], source: str, message: str
) -> None:
    await scene.manager.apply(deployment(), FILE)
    with pytest.raises(ConfigError, match=message):
        await scene.manager.apply(deployment(**more), source)


async def test_a_target_with_other_token_ids_is_rejected(scene: Scene, tmp_path: Path) -> None:
    for name, vocab in (("one", {"a": 0}), ("two", {"a": 1}), ("same", {"a": 0})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))

    def of(name: str) -> Deployment:
        return deployment(target={"model": str(tmp_path / name)})

    await scene.manager.apply(of("one"), FILE)
    with pytest.raises(ConfigError, match=r"target.model: .*two maps tokens to other ids than .*one"):
        await scene.manager.apply(of("two"), FILE)
    assert (await scene.manager.apply(of("same"), FILE)).changes


async def test_down_refuses_a_time_beyond_its_limit_and_ends_nothing(scene: Scene) -> None:
    await scene.manager.apply(deployment(), FILE)
    for wrong in (86_401.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match=r"grace_s: drain_s: is .*: must be "):
            await scene.manager.down(wrong)
    assert not (await scene.manager.apply(deployment(), FILE)).changes


async def test_down_drains_stops_and_leaves_no_trace(scene: Scene) -> None:
    await scene.manager.apply(deployment(), FILE)
    await scene.until_ready("target-0.1", "target-1.1")
    down = asyncio.create_task(scene.manager.down(0.0))
    await asyncio.sleep(0)
    with pytest.raises(NotReady, match="is being ended"):
        await scene.manager.apply(deployment(), FILE)
    async with asyncio.timeout(240):
        await down
    assert not scene.fleet.alive()
    assert all(replica.drained_within_s == 0.0 for replica in scene.fleet.replicas.values())
    assert scene.storage.document is None


async def test_a_stop_that_fails_is_repeated_until_the_instance_has_ended(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "_FAULT_RETRY_S", 0.0)
    await scene.manager.apply(deployment(target={"model": "/m/big"}), FILE)
    await scene.until_ready("target-0.1")
    replica = scene.fleet.replicas["target-0.1"]
    stop, faults = replica.stop, iter([ConnectionError("the GCS does not answer")] * 3)

    async def stop_at_the_fourth_call() -> None:
        if (fault := next(faults, None)) is not None:
            raise fault
        await stop()

    monkeypatch.setattr(replica, "stop", stop_at_the_fourth_call)
    async with asyncio.timeout(240):
        await scene.manager.down(0.0)
    assert replica.is_stopped
