"""A manager over a fake fleet whose servers are real: it adopts, replaces, drains, and writes down first."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fly.clock import SystemClock
from fly.errors import ConfigError, NotReady
from fly.messages import Load, ModelInfo, Role
from orchestration.config import Deployment
from orchestration.manager import Manager
from orchestration.replicas import Instance, Key, Node
from orchestration.status import ReplicaStatus, State
from orchestration.supervision import Replica, ReplicaDown, ReplicaLost, ReplicaRefused
from orchestration.topology import ACTORS
from protos.flyserve.v1 import common_pb2
from protos.flyserve.v1.target_pb2_grpc import TargetServicer, add_TargetServicer_to_server
from services.common.codec.shared import info_to_wire
from services.common.config import parse
from services.common.host import Host, Service

FILE = "/etc/one.yaml"
REGISTRY = "127.0.0.1:7"
INFO = ModelInfo(Role.TARGET, "big", "w", "simulated", "t", 10, 0, "float32", 1, 100, "0")
PATIENCE_S = 10


async def _nothing() -> None:
    pass


class FakeReplica(TargetServicer):
    """An instance whose server says the load that the test gives it, and whose server the test stops."""

    def __init__(self, node: str) -> None:
        register = partial(add_TargetServicer_to_server, self)
        self.host = Host(Service("flyserve.v1.Target", register, _nothing))
        self.load = Load(kv_capacity=100)
        self.place = node
        self.fault: Exception | None = None
        self.drained_within_s: float | None = None
        self.is_ended = False
        self._is_up = False

    async def Info(self, request: common_pb2.InfoRequest, context: Any) -> common_pb2.InfoResponse:
        return info_to_wire(INFO, self.load)

    async def node(self) -> str:
        return self.place

    async def address(self) -> str:
        if self.fault is not None:
            raise self.fault
        if not self._is_up:
            await self.host.start()
            self._is_up = True
        return self.host.address

    async def drain(self, grace_s: float) -> None:
        self.drained_within_s = grace_s

    async def crash(self) -> None:
        self.fault = ReplicaLost("it crashed")
        await self.host._server.stop(0.0)

    async def end(self) -> None:
        self.is_ended = True
        if self._is_up:
            await self.host.drain(0.0)


class FakeFleet:
    def __init__(self) -> None:
        self.replicas: dict[str, FakeReplica] = {}
        self.faults: dict[str, Exception] = {}

    async def nodes(self) -> tuple[Node, ...]:
        return (Node("a", "node a", 8.0), Node("b", "node b", 8.0))

    async def start(self, instance: Instance, registry: str) -> Replica:
        replica = self.replicas[str(instance.key)] = FakeReplica(instance.node)
        replica.fault = self.faults.get(instance.spec.replica)
        return replica

    async def adopt(self, instance: Instance) -> Replica | None:
        found = self.replicas.get(str(instance.key))
        return None if found is None or found.is_ended or found.fault else found

    async def end_strangers(self, known: Collection[Key]) -> None:
        for name in self.replicas.keys() - {str(key) for key in known}:
            await self.replicas[name].end()

    def alive(self) -> set[str]:
        return {name for name, replica in self.replicas.items() if not replica.is_ended}


class MemoryStore:
    def __init__(self) -> None:
        self.document: bytes | None = None
        self.is_away = False

    def read(self) -> bytes | None:
        return self.document

    def write(self, document: bytes) -> None:
        if self.is_away:
            raise ConnectionError("no answer")
        self.document = document

    def delete(self) -> None:
        self.document = None


class Scene:
    """A manager that may be killed and started anew."""

    def __init__(self) -> None:
        self.fleet, self.store = FakeFleet(), MemoryStore()
        self.manager = Manager("test", self.fleet, self.store, SystemClock(), ACTORS)

    async def start(self) -> None:
        await self.manager.recall()
        await self.manager.start(REGISTRY)

    async def restart(self) -> None:
        """The manager is killed at this point; another one comes."""
        await self.manager.stop()
        self.manager = Manager("test", self.fleet, self.store, SystemClock(), ACTORS)
        await self.start()

    async def rows(self) -> dict[str, ReplicaStatus]:
        return {f"{row.replica}.{row.generation}": row for row in (await self.manager.status()).replicas}

    async def until(self, condition: Callable[[dict[str, ReplicaStatus]], bool]) -> dict[str, ReplicaStatus]:
        rows = await self.rows()
        end = asyncio.get_running_loop().time() + PATIENCE_S
        while not condition(rows):
            assert asyncio.get_running_loop().time() < end, (rows, (await self.manager.status()).notes)
            await asyncio.sleep(0.01)
            rows = await self.rows()
        return rows

    async def until_ready(self, *names: str) -> dict[str, ReplicaStatus]:
        """Exactly these run, and serve."""

        def are_ready(rows: dict[str, ReplicaStatus]) -> bool:
            return rows.keys() == set(names) and all(row.state is State.READY for row in rows.values())

        return await self.until(are_ready)


def deployment(**more: Any) -> Deployment:
    data = {"target": {"model": "/m/big", "replicas": 2}, "rollout": {"drain_s": 0.2}, **more}
    return parse(Deployment, data, "test")


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    await scene.start()
    yield scene
    await scene.manager.stop()
    for replica in scene.fleet.replicas.values():
        if not replica.is_ended:
            await replica.end()


async def test_replicas_are_spread_listed_and_told_of(scene: Scene) -> None:
    report = await scene.manager.apply(deployment(), FILE)
    rows = await scene.until_ready("target-0.1", "target-1.1")
    assert report.is_new
    assert {row.node for row in rows.values()} == {"node a", "node b"}
    listed = {endpoint.address for endpoint in scene.manager.registry.snapshot.endpoints}
    assert listed == {row.address for row in rows.values()}
    (tier,) = (await scene.manager.status()).tiers
    assert (tier.role, tier.desired, tier.ready, tier.outdated) == (Role.TARGET, 2, 2, 0)


async def test_a_restarted_manager_adopts_what_runs_and_routers_notice_nothing(scene: Scene) -> None:
    await scene.manager.apply(deployment(), FILE)
    await scene.until_ready("target-0.1", "target-1.1")
    told = scene.manager.registry.snapshot
    await scene.restart()
    assert scene.manager.registry.snapshot.endpoints == told.endpoints
    await scene.until_ready("target-0.1", "target-1.1")
    assert scene.fleet.alive() == {"target-0.1", "target-1.1"}
    assert (await scene.manager.status()).controller_starts == 2
    assert not (await scene.manager.apply(deployment(), FILE)).changes


async def test_what_ended_while_the_manager_was_away_is_started_anew_and_strangers_are_ended(
    scene: Scene,
) -> None:
    await scene.manager.apply(deployment(), FILE)
    await scene.until_ready("target-0.1", "target-1.1")
    await scene.manager.stop()
    await scene.fleet.replicas["target-0.1"].end()
    stranger = scene.fleet.replicas["target-9.1"] = FakeReplica("a")
    await scene.restart()
    await scene.until_ready("target-0.2", "target-1.1")
    assert stranger.is_ended


async def test_a_crashed_replica_comes_back_under_the_next_generation(scene: Scene) -> None:
    await scene.manager.apply(deployment(), FILE)
    await scene.until_ready("target-0.1", "target-1.1")
    await scene.fleet.replicas["target-1.1"].crash()
    await scene.until_ready("target-0.1", "target-1.2")
    assert scene.fleet.replicas["target-1.1"].is_ended


async def test_other_weights_replace_every_target_and_scaling_none(scene: Scene) -> None:
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
    await scene.manager.scale({Role.TARGET: 1})
    await scene.until_ready("target-0.2")


async def test_a_drained_replica_is_replaced_elsewhere(scene: Scene) -> None:
    await scene.manager.apply(deployment(target={"model": "/m/big"}), FILE)
    before = await scene.until_ready("target-0.1")
    await scene.manager.drain("target-0", at_once=False)
    after = await scene.until_ready("target-0.2")
    assert before["target-0.1"].node != after["target-0.2"].node


async def test_a_model_that_cannot_be_served_is_told_with_the_remedy(scene: Scene) -> None:
    scene.fleet.faults["target-0"] = ReplicaRefused("/m/big: no weights in the folder")
    await scene.manager.apply(deployment(), FILE)
    rows = await scene.until(lambda rows: any(row.state is State.FAILED for row in rows.values()))
    (failed,) = [row for row in rows.values() if row.state is State.FAILED]
    assert failed.detail.startswith("/m/big: no weights in the folder")
    assert "every node" in failed.remedy
    del scene.fleet.faults["target-0"]
    await scene.until(lambda rows: all(row.state is State.READY and not row.detail for row in rows.values()))


async def test_what_waits_for_room_is_told_with_the_remedy(scene: Scene) -> None:
    scene.fleet.faults["target-1"] = ReplicaDown("no node is large enough for 9 CPUs: the largest has 8")
    await scene.manager.apply(deployment(), FILE)
    rows = await scene.until(lambda rows: any(row.state is State.PENDING for row in rows.values()))
    (pending,) = [row for row in rows.values() if row.state is State.PENDING]
    assert (pending.replica, pending.detail[:23]) == ("target-1", "no node is large enough")
    assert "target.threads" in pending.remedy


async def test_nothing_is_started_before_it_could_be_written_down(scene: Scene) -> None:
    scene.store.is_away = True
    await scene.manager.apply(deployment(), FILE)
    async with asyncio.timeout(10):
        while not any("no answer" in note for note in (await scene.manager.status()).notes):
            await asyncio.sleep(0.01)
    assert not scene.fleet.replicas
    scene.store.is_away = False
    await scene.until_ready("target-0.1", "target-1.1")
    assert not (await scene.manager.status()).notes


@pytest.mark.parametrize(
    ("more", "source", "message"),
    [
        ({}, "/etc/two.yaml", "name: test runs already, as /etc/one.yaml says"),
        ({"controller": {"port": 5}}, FILE, "controller.port: 0 -> 5 .cannot be changed while"),
        ({"name": "other"}, FILE, "name: default -> other .cannot be changed while"),
    ],
)
async def test_what_cannot_be_applied_in_place_is_refused(
    scene: Scene, more: dict[str, Any], source: str, message: str
) -> None:
    await scene.manager.apply(deployment(), FILE)
    with pytest.raises(ConfigError, match=message):
        await scene.manager.apply(deployment(**more), source)


async def test_a_target_of_other_tokens_is_refused(scene: Scene, tmp_path: Path) -> None:
    for name, vocab in (("one", {"a": 0}), ("two", {"a": 1}), ("same", {"a": 0})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))

    def of(name: str) -> Deployment:
        return deployment(target={"model": str(tmp_path / name)})

    await scene.manager.apply(of("one"), FILE)
    with pytest.raises(ConfigError, match=r"target.model: .*two maps tokens to other ids than .*one"):
        await scene.manager.apply(of("two"), FILE)
    assert (await scene.manager.apply(of("same"), FILE)).changes


@pytest.mark.parametrize(
    ("replicas", "message"),
    [
        ({Role.TARGET: 0}, "target.replicas: is 0: .* greater than or equal to 1"),
        ({Role.TARGET: 2000}, "target.replicas: is 2000: .* less than or equal to 1024"),
        ({Role.DRAFTER: 2}, "drafter: default has no such tier"),
    ],
)
async def test_a_scale_beyond_the_limits_is_refused(
    scene: Scene, replicas: dict[Role, int], message: str
) -> None:
    await scene.manager.apply(deployment(), FILE)
    with pytest.raises(ConfigError, match=message):
        await scene.manager.scale(replicas)


def autoscaled(**settings: Any) -> Deployment:
    how = {"min": 1, "max": 3, "upscale_delay_s": 0.5, "downscale_delay_s": 1, **settings}
    return deployment(target={"model": "/m/big", "max_sequences": 4, "autoscaling": how})


def carry(scene: Scene, **sequences: int) -> None:
    """Tells what each instance carries, such as `target_1=3`; the others carry nothing."""
    for name, replica in scene.fleet.replicas.items():
        number = sequences.get(name.partition(".")[0].replace("-", "_"), 0)
        replica.load = Load(sequences=number, kv_capacity=100)


async def test_the_load_adds_replicas_and_drains_those_that_carry_least(scene: Scene) -> None:
    await scene.manager.apply(autoscaled(), FILE)
    await scene.until_ready("target-0.1")
    carry(scene, target_0=12)
    rows = await scene.until_ready("target-0.1", "target-1.1", "target-2.1")
    (tier,) = (await scene.manager.status()).tiers
    assert tier.autoscaling is not None
    assert (tier.desired, tier.autoscaling.min, tier.autoscaling.max) == (3, 1, 3)
    assert tier.autoscaling.why.endswith("at the maximum")
    assert not (await scene.manager.apply(autoscaled(), FILE)).changes, "the file does not undo it"
    carry(scene, target_0=12, target_1=2)
    await scene.until(lambda rows: rows["target-1.1"].load.sequences == 2)
    carry(scene, target_1=2)
    after = await scene.until_ready("target-1.1")
    assert after["target-1.1"].address == rows["target-1.1"].address
    assert scene.fleet.replicas["target-0.1"].drained_within_s is not None
    carry(scene, target_1=12)
    await scene.until(lambda rows: {"target-1.1"} < rows.keys() and len(rows) == 3)


async def test_a_restarted_manager_keeps_those_that_the_load_asked_for(scene: Scene) -> None:
    await scene.manager.apply(autoscaled(), FILE)
    await scene.until_ready("target-0.1")
    carry(scene, target_0=12)
    await scene.until_ready("target-0.1", "target-1.1", "target-2.1")
    carry(scene, target_2=5)
    await scene.until_ready("target-0.1", "target-2.1")
    await scene.restart()
    await scene.until_ready("target-0.1", "target-2.1")
    assert scene.fleet.alive() == {"target-0.1", "target-2.1"}


async def test_a_person_scales_within_the_limits_and_the_load_goes_on_from_there(scene: Scene) -> None:
    await scene.manager.apply(autoscaled(), FILE)
    await scene.until_ready("target-0.1")
    assert await scene.manager.scale({Role.TARGET: 3})
    await scene.until_ready("target-0.1", "target-1.1", "target-2.1")
    await scene.until_ready("target-0.1")
    with pytest.raises(ConfigError, match=r"target.replicas: is 4: must be within autoscaling.min 1 and .*3"):
        await scene.manager.scale({Role.TARGET: 4})
    report = await scene.manager.apply(autoscaled(min=2), FILE)
    assert [str(change) for change in report.changes] == [
        "target.autoscaling.min: 1 -> 2 (holds at once)",
        "target.replicas: 1 -> 2 (scales the tier)",
    ]


async def test_an_unknown_replica_is_refused(scene: Scene) -> None:
    await scene.manager.apply(deployment(), FILE)
    await scene.until_ready("target-0.1", "target-1.1")
    with pytest.raises(ConfigError, match="target-7: test has no such replica, but target-0, target-1"):
        await scene.manager.drain("target-7", at_once=False)


async def test_down_drains_ends_and_leaves_no_trace(scene: Scene) -> None:
    await scene.manager.apply(deployment(), FILE)
    await scene.until_ready("target-0.1", "target-1.1")
    down = asyncio.create_task(scene.manager.down(0.0))
    await asyncio.sleep(0)
    with pytest.raises(NotReady, match="is being ended"):
        await scene.manager.apply(deployment(), FILE)
    async with asyncio.timeout(10):
        await down
    assert not scene.fleet.alive()
    assert all(replica.drained_within_s == 0.0 for replica in scene.fleet.replicas.values())
    assert scene.store.document is None
