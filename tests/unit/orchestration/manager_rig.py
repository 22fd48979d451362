"""A manager over a fake fleet, whose servers are real, and a store in memory."""

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from fly.clock import SystemClock
from fly.messages import Load, ModelInfo, Role
from orchestration.control.instances import Instance, Key, Node
from orchestration.control.manager import Manager
from orchestration.control.status import ReplicaStatus, State
from orchestration.control.supervision import Replica, ReplicaLost
from orchestration.deployment.file import Deployment
from orchestration.deployment.plan import ACTORS
from protos.flyserve.v1 import common_pb2
from protos.flyserve.v1.target_pb2_grpc import TargetServicer, add_TargetServicer_to_server
from protos.wire.streams import info_to_wire
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
    """A manager that may be killed and restarted."""

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

    def told(self) -> set[str]:
        """The addresses that the registry tells."""
        return {endpoint.address for endpoint in self.manager.registry.snapshot.endpoints}

    async def until(self, condition: Callable[[dict[str, ReplicaStatus]], bool]) -> dict[str, ReplicaStatus]:
        rows = await self.rows()
        end = asyncio.get_running_loop().time() + PATIENCE_S
        while not condition(rows):
            assert asyncio.get_running_loop().time() < end, (rows, (await self.manager.status()).notes)
            await asyncio.sleep(0.01)
            rows = await self.rows()
        return rows

    async def until_ready(self, *names: str) -> dict[str, ReplicaStatus]:
        """Exactly these run, serve, and are told of."""

        def are_ready(rows: dict[str, ReplicaStatus]) -> bool:
            ready = {row.address for row in rows.values() if row.state is State.READY}
            return rows.keys() == set(names) and len(ready) == len(names) and self.told() == ready

        return await self.until(are_ready)


def deployment(**more: Any) -> Deployment:
    data = {"target": {"model": "/m/big", "replicas": 2}, "rollout": {"drain_s": 0.2}, **more}
    return parse(Deployment, data, "test")
