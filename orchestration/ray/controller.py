"""The controller: a named Ray actor that keeps one deployment as it is desired, and hosts its registry."""

import asyncio
import logging
import os
import socket
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from fly.clock import SystemClock
from fly.errors import ConfigError, FlyServeError
from fly.messages import Role
from orchestration.control.manager import Manager
from orchestration.control.registry import registry_service
from orchestration.control.state_store import RayStore
from orchestration.control.status import DeploymentStatus
from orchestration.deployment.diff import Change, Report
from orchestration.deployment.file import ControllerConfig, Deployment
from orchestration.deployment.security import controller_identity, registry_guard
from orchestration.ray.calls import own_address
from orchestration.ray.fleet import RayFleet
from services.common.host import Host
from services.common.host_thread import HostThread

logger = logging.getLogger(__name__)

_PORT_WAIT_S = 10.0
_PORT_POLL_S = 0.1

T = TypeVar("T")


class Controller:
    """Its state lives on the event loop of its gRPC host; every method only passes its call to that loop.

    Ray restarts it with the same arguments; what it had been told since, it reads from its store.
    """

    def __init__(
        self,
        name: str,
        host: str | None,
        config: ControllerConfig,
        actors: Mapping[Role, str],
        security: Mapping[str, Any],
    ) -> None:
        """Serves the registry and goes on where an earlier controller was.

        Args:
            name: Of the deployment.
            host: Interface that the registry listens at; None is the node's own.
            config: Where the registry is found.
            actors: Class of each tier's actor.
            security: Of the controller, as `controller_security` says it.
        """
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._host = host or own_address()
        self._config = config
        self._identity = controller_identity(security)
        self._manager = Manager(name, RayFleet(name), RayStore(name), SystemClock(), actors, self._identity)
        try:
            self._begin()
        except FlyServeError:
            raise
        except Exception:
            # NOTE: Ray gives an actor up whose constructor raises, but restarts one whose process ends.
            logger.exception("the controller cannot start; it is started again")
            os._exit(1)

    def address(self) -> str:
        """host:port of the registry."""
        return self._registry

    def apply(self, deployment: str, source: str, replaces: bool) -> Report:
        """Makes a deployment, as JSON, the desired one; see `Manager.apply`."""
        return self._call(self._manager.apply(Deployment.model_validate_json(deployment), source, replaces))

    def scale(self, replicas: Mapping[Role, int]) -> tuple[Change, ...]:
        """Changes how many replicas are desired; see `Manager.scale`."""
        return self._call(self._manager.scale(replicas))

    def drain(self, replica: str, at_once: bool) -> None:
        """Replaces a replica; see `Manager.drain`."""
        self._call(self._manager.drain(replica, at_once))

    def status(self) -> DeploymentStatus:
        """Every replica, its state and its load."""
        return self._call(self._manager.status())

    def down(self, grace_s: float) -> None:
        """Drains and ends every replica, then the registry; the caller ends the controller itself."""
        self._call(self._manager.down(grace_s))
        self._thread.stop(0.0)

    def _begin(self) -> None:
        self._thread = HostThread(self._build)
        port = self._thread.host.address.rpartition(":")[2]
        self._registry = f"{self._config.advertised_host or self._host}:{port}"
        self._call(self._manager.start(self._registry))

    async def _build(self) -> Host:
        record = await self._manager.recall()
        port = self._config.port
        if record.registry:
            port = await self._kept(int(record.registry.rpartition(":")[2]))
        elif port and not _is_free(self._host, port):
            taken = f"controller.port: {self._host}:{port} is in use"
            raise ConfigError(f"{taken}: choose another port, 0 takes a free one")
        service = registry_service(self._manager.registry)
        return Host(service, f"{self._host}:{port}", registry_guard(self._identity))

    async def _kept(self, port: int) -> int:
        """The port that routers and drafters know, which an earlier controller may not have let go of yet.

        Another, free one where somebody else has taken it: the manager says so, and replaces the drafters.
        """
        for _ in range(int(_PORT_WAIT_S / _PORT_POLL_S)):
            if _is_free(self._host, port):
                return port
            await asyncio.sleep(_PORT_POLL_S)
        return 0

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._thread.loop).result()


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
