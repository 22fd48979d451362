"""A deployment manager over a fake fleet, whose servers are real, and storage in memory."""

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from flyserve.core.clock import SystemClock
from flyserve.core.messages import Load, ModelInfo, Role
from flyserve.v1 import common_pb2
from flyserve.v1.target_pb2_grpc import TargetServicer, add_TargetServicer_to_server
from flyserve.wire.streams import info_to_wire
from orchestration.control.deployment_manager import DeploymentManager
from orchestration.control.fleet import InstanceHandle, InstanceLost
from orchestration.control.instances import Instance, InstanceKey, Node
from orchestration.control.status import ReplicaState, ReplicaStatus
from orchestration.deployment.file import Deployment
from orchestration.deployment.plan import ACTORS
from services.common.config import parse
from services.common.host import Host, Service

FILE = "/etc/one.yaml"
REGISTRY = "127.0.0.1:7"
INFO = ModelInfo(Role.TARGET, "big", "w", "simulated", "t", 10, 0, "float32", 1, 100, "0", row_invariant=True)
PATIENCE_S = 240


async def _nothing() -> None:
    pass


class FakeInstance(TargetServicer):
    """An instance whose server reports the load that the test sets, and which the test can crash."""

    def __init__(self, node: str) -> None:
        register = partial(add_TargetServicer_to_server, self)
        self.host = Host(Service("flyserve.v1.Target", register, _nothing))
        self.load = Load(kv_capacity=100)
        self.place = node
        self.fault: Exception | None = None
        self.drained_within_s: float | None = None
        self.is_stopped = False
        self._start: asyncio.Task[None] | None = None

    async def Info(self, request: common_pb2.InfoRequest, context: Any) -> common_pb2.InfoResponse:
        return info_to_wire(INFO, self.load)

    async def node(self) -> str:
        return self.place

    async def address(self) -> str:
        if self.fault is not None:
            raise self.fault
        # NOTE: a caller may be cancelled, and another one ask; gRPC crashes if a server is started again.
        if self._start is None:
            self._start = asyncio.create_task(self.host.start())
        await asyncio.shield(self._start)
        return self.host.address

    async def drain(self, grace_s: float) -> None:
        self.drained_within_s = grace_s

    async def crash(self) -> None:
        self.fault = InstanceLost("it crashed")
        await self.host._server.stop(0.0)

    async def stop(self) -> None:
        self.is_stopped = True
        if self._start is not None:
            await self._start
            await self.host.drain(0.0)


class FakeFleet:
    def __init__(self) -> None:
        self.replicas: dict[str, FakeInstance] = {}
        self.faults: dict[str, Exception] = {}

    async def nodes(self) -> tuple[Node, ...]:
        return (Node("a", "node a", {"CPU": 8.0}), Node("b", "node b", {"CPU": 8.0}))

    async def start(self, instance: Instance, registry: str) -> InstanceHandle:
        replica = self.replicas[str(instance.key)] = FakeInstance(instance.node)
        replica.fault = self.faults.get(instance.spec.replica)
        return replica

    async def adopt(self, instance: Instance) -> InstanceHandle | None:
        found = self.replicas.get(str(instance.key))
        return None if found is None or found.is_stopped or found.fault else found

    async def stop_orphans(self, known: Collection[InstanceKey]) -> None:
        for name in self.replicas.keys() - {str(key) for key in known}:
            await self.replicas[name].stop()

    def alive(self) -> set[str]:
        return {name for name, replica in self.replicas.items() if not replica.is_stopped}


class MemoryStorage:
    def __init__(self) -> None:
        self.document: bytes | None = None
        self.is_unavailable = False

    def read(self) -> bytes | None:
        return self.document

    def write(self, document: bytes) -> None:
        if self.is_unavailable:
            raise ConnectionError("no answer")
        self.document = document

    def delete(self) -> None:
        self.document = None


class Scene:
    """A deployment manager that a test can kill and restart."""

    def __init__(self) -> None:
        self.fleet, self.storage = FakeFleet(), MemoryStorage()
        self.manager = DeploymentManager("test", self.fleet, self.storage, SystemClock(), ACTORS)

    async def start(self) -> None:
        await self.manager.restore()
        await self.manager.start(REGISTRY)

    async def restart(self) -> None:
        """Kill the manager at this point and start another one."""
        await self.manager.stop()
        self.manager = DeploymentManager("test", self.fleet, self.storage, SystemClock(), ACTORS)
        await self.start()

    async def rows(self) -> dict[str, ReplicaStatus]:
        return {f"{row.replica}.{row.generation}": row for row in (await self.manager.status()).replicas}

    def listed(self) -> set[str]:
        """Return the addresses that the registry lists."""
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
        """Wait until exactly these run, are ready and are listed."""

        def are_ready(rows: dict[str, ReplicaStatus]) -> bool:
            ready = {row.address for row in rows.values() if row.state is ReplicaState.READY}
            return rows.keys() == set(names) and len(ready) == len(names) and self.listed() == ready

        return await self.until(are_ready)


def deployment(**more: Any) -> Deployment:
    data = {"target": {"model": "/m/big", "replicas": 2}, "rollout": {"drain_s": 0.2}, **more}
    return parse(Deployment, data, "test")
