"""The controller: a named Ray actor that reconciles the deployment and hosts the registry."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import ray

from fly.messages import Role
from orchestration.fleet import RayFleet
from orchestration.reconciler import Reconciler, ReplicaStatus
from orchestration.registry import Registry, registry_service
from orchestration.security import controller_identity, registry_guard
from orchestration.topology import ReplicaSpec
from services.common.host import Host
from services.common.host_thread import HostThread

NAME = "controller"
NAMESPACE = "flyserve"
NUM_CPUS = 0.5

T = TypeVar("T")


class Controller:
    """Its state lives on the event loop of its gRPC host; every method only passes its call to that loop."""

    def __init__(self, address: str = "127.0.0.1:0", security: dict[str, Any] | None = None) -> None:
        """Starts the registry's server, so that a restarted controller serves again.

        Args:
            address: host:port of the registry.
            security: Of the controller, as `controller_security` says it.
        """
        self._identity = controller_identity(security or {})
        self._thread = HostThread(lambda: self._build(address))

    def address(self) -> str:
        """host:port of the registry."""
        return self._thread.host.address

    def apply(self, specs: tuple[ReplicaSpec, ...], grace_s: float) -> None:
        """Makes `specs` the desired replicas; returns once the missing ones are being started."""
        self._call(self._reconciler.apply(specs, grace_s))

    def report(self, role: str, replica: str, address: str) -> None:
        """A service actor serves at `address`."""
        self._loop.call_soon_threadsafe(self._reconciler.report, Role(role), replica, address)

    def status(self) -> list[ReplicaStatus]:
        return self._call(self._read_status())

    def stop(self, grace_s: float) -> None:
        """Drains and ends every replica, then the registry."""
        self._call(self._reconciler.stop(grace_s))
        self._loop.call_soon_threadsafe(self._registry.close)
        self._thread.stop(grace_s)

    async def _build(self, address: str) -> Host:
        self._loop = asyncio.get_running_loop()
        self._registry = Registry()
        fleet = RayFleet(ray.get_runtime_context().current_actor)
        self._reconciler = Reconciler(self._registry, fleet, self._identity)
        return Host(registry_service(self._registry), address, registry_guard(self._identity))

    async def _read_status(self) -> list[ReplicaStatus]:
        return self._reconciler.status()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


def create_controller(security: dict[str, Any] | None = None) -> Any:
    """Starts the controller's actor; returns its handle. `security` is what `controller_security` says."""
    return (
        ray.remote(Controller)
        .options(name=NAME, namespace=NAMESPACE, num_cpus=NUM_CPUS, max_concurrency=16)
        .remote(security=security)
    )
