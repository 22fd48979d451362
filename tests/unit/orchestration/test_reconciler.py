import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from fly.messages import Role
from orchestration.reconciler import Reconciler, ReplicaDown, ReplicaFailed, ReplicaLost, State
from orchestration.registry import Registry
from orchestration.topology import ReplicaSpec
from services.common.host import Host, Service

SPEC = ReplicaSpec(Role.TARGET, "target-0", "nowhere:Nothing", 1.0, {})


async def _nothing() -> None:
    pass


async def serving() -> Host:
    host = Host(Service("flyserve.test.Nothing", lambda server: None, _nothing))
    await host.start()
    return host


class FakeReplica:
    """A replica whose server the test starts and stops."""

    def __init__(self) -> None:
        self.host: Host | None = None
        self.failure: str | None = None
        self.loss: str | None = None
        self.waits_for = ""
        self.drained_within_s: float | None = None
        self.is_killed = False

    async def address(self) -> str:
        if self.failure is not None:
            raise ReplicaFailed(self.failure)
        if self.loss is not None:
            raise ReplicaLost(self.loss)
        if self.host is None:
            raise ReplicaDown(self.waits_for)
        return self.host.address

    async def drain(self, grace_s: float) -> None:
        self.drained_within_s = grace_s

    def kill(self) -> None:
        self.is_killed = True


class FakeFleet:
    def __init__(self) -> None:
        self.started: dict[str, FakeReplica] = {}

    def start(self, spec: ReplicaSpec) -> FakeReplica:
        self.started[spec.replica] = FakeReplica()
        return self.started[spec.replica]


class Scene:
    def __init__(self) -> None:
        self.registry, self.fleet = Registry(), FakeFleet()
        self.reconciler = Reconciler(self.registry, self.fleet)

    @property
    def replica(self) -> FakeReplica:
        return self.fleet.started["target-0"]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.01)

    def listed(self) -> list[tuple[str, int]]:
        return [(e.address, e.generation) for e in self.registry.snapshot.endpoints]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    await scene.reconciler.apply([SPEC], 0.0)
    yield scene
    await scene.reconciler.stop(0.0)
    for replica in scene.fleet.started.values():
        if replica.host is not None:
            await replica.host.drain(0.0)


async def test_a_replica_is_listed_once_it_serves(scene: Scene) -> None:
    await scene.until(lambda: scene.reconciler.status()[0].state is State.RESTARTING)
    scene.replica.host = await serving()
    await scene.until(lambda: scene.reconciler.status()[0].state is State.READY)
    assert scene.listed() == [(scene.replica.host.address, 1)]


async def test_a_lost_replica_is_listed_no_more_and_then_anew(scene: Scene) -> None:
    first = scene.replica.host = await serving()
    await scene.until(lambda: len(scene.listed()) == 1)
    scene.replica.host = None
    # NOTE: without a drain: its peers only see the connection end.
    await first._server.stop(0.0)
    await scene.until(lambda: scene.listed() == [])
    second = scene.replica.host = await serving()
    await scene.until(lambda: scene.listed() == [(second.address, 2)])


async def test_a_replica_that_drains_is_marked_then_listed_no_more(scene: Scene) -> None:
    host = scene.replica.host = await serving()
    await scene.until(lambda: len(scene.listed()) == 1)
    with scene.registry.watch() as snapshots:
        async with asyncio.timeout(5):
            # NOTE: the supervisor's own stream must not hold the drain up.
            await host.drain(60.0)
            seen = [await snapshots.get() for _ in range(3)]
    assert [[e.draining for e in snapshot.endpoints] for snapshot in seen if snapshot] == [
        [False],
        [True],
        [],
    ]
    scene.replica.host = None


async def test_a_replica_that_cannot_start_says_why(scene: Scene) -> None:
    scene.replica.failure = "no weights"
    await scene.until(lambda: scene.reconciler.status()[0].state is State.FAILED)
    assert scene.reconciler.status()[0].detail == "no weights"
    assert scene.listed() == []


async def test_a_lost_group_is_ended_and_started_anew(scene: Scene) -> None:
    lost = scene.replica
    lost.host = await serving()
    await scene.until(lambda: len(scene.listed()) == 1)
    lost.loss = "rank 1 is gone"
    await lost.host.drain(0.0)
    await scene.until(lambda: scene.replica is not lost)
    assert lost.is_killed
    (status,) = scene.reconciler.status()
    assert (status.state, status.address) == (State.RESTARTING, "")
    scene.replica.host = await serving()
    await scene.until(lambda: scene.listed() == [(scene.replica.host.address, 2)])
    await scene.until(lambda: scene.reconciler.status()[0].state is State.READY)
    assert scene.reconciler.status()[0].detail == ""
    lost.host = None


async def test_a_replica_tells_what_it_waits_for(scene: Scene) -> None:
    scene.replica.waits_for = "no node has room"
    await scene.until(lambda: scene.reconciler.status()[0].detail == "no node has room")
    assert scene.listed() == []


async def test_a_report_lists_a_desired_replica_at_once(scene: Scene) -> None:
    scene.reconciler.report(Role.TARGET, "target-0", "h:1")
    scene.reconciler.report(Role.TARGET, "target-9", "h:9")
    assert scene.listed() == [("h:1", 1)]


async def test_what_is_desired_no_more_is_drained_and_ended(scene: Scene) -> None:
    replica = scene.replica
    replica.host = await serving()
    await scene.until(lambda: len(scene.listed()) == 1)
    await scene.reconciler.apply([], 3.0)
    assert (replica.drained_within_s, replica.is_killed) == (3.0, True)
    assert scene.listed() == []
    assert scene.reconciler.status() == []


async def test_applying_the_same_again_starts_nothing(scene: Scene) -> None:
    replica = scene.replica
    await scene.reconciler.apply([SPEC], 0.0)
    assert scene.replica is replica
    assert not replica.is_killed
