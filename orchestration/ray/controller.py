"""The controller: a named Ray actor that runs one deployment's manager and hosts its registry."""

import asyncio
import logging
import os
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import ray

from flyserve.core.clock import SystemClock
from flyserve.core.errors import ConfigError, FlyServeError, NotReady
from flyserve.core.messages import Role
from flyserve.signals import end_at_sigterm
from orchestration.control.deployment_manager import DeploymentManager
from orchestration.control.registry import registry_service
from orchestration.control.status import DeploymentStatus
from orchestration.deployment.diff import Change, Report
from orchestration.deployment.file import ControllerConfig, Deployment
from orchestration.deployment.security import controller_identity, registry_access_policy
from orchestration.ray.api import GcsStorage, node_address
from orchestration.ray.fleet import RayFleet
from services.common.addresses import bind_fault
from services.common.host import Host
from services.common.host_thread import HostThread

logger = logging.getLogger(__name__)

_PORT_WAIT_S = 10.0
_PORT_POLL_S = 0.1
_END_S = 10.0
"""Time in which the caller of `down` ends this actor; it may have gone."""

T = TypeVar("T")


class Controller:
    """Runs the deployment manager on the event loop of the registry's host; methods only pass calls to it.

    Ray restarts it with the same arguments; it then restores its state from the state store.
    """

    def __init__(
        self,
        name: str,
        host: str | None,
        config: ControllerConfig,
        actors: Mapping[Role, str],
        security: Mapping[str, Any],
    ) -> None:
        """Restore the state of an earlier controller, if there was one, and serve the registry.

        The arguments are those of `create_controller`.
        """
        end_at_sigterm()
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._name = name
        self._downs: list[Future[None]] = []
        self._host = host or node_address()
        self._config = config
        self._identity = controller_identity(security)
        self._manager = DeploymentManager(
            name, RayFleet(name), GcsStorage(name), SystemClock(), actors, self._identity
        )
        try:
            self._start()
        except FlyServeError:
            raise
        except Exception:
            # NOTE: Ray does not restart an actor whose constructor raises, but one whose process ends.
            logger.exception("the controller cannot start and is restarted")
            os._exit(1)

    def address(self) -> str:
        """Return host:port of the registry."""
        return self._registry

    def deployment(self) -> str | None:
        """Return the desired deployment as JSON; None before one is applied."""
        deployment = self._manager.deployment
        return None if deployment is None else deployment.model_dump_json()

    def apply(self, deployment: str, source: str, replaces: bool) -> Report:
        """Make a deployment, given as JSON, the desired one; see `DeploymentManager.apply`."""
        return self._call(self._manager.apply(Deployment.model_validate_json(deployment), source, replaces))

    def scale(self, replicas: Mapping[Role, int], is_forced: bool = False) -> tuple[Change, ...]:
        """Change the desired numbers of replicas; see `DeploymentManager.scale`."""
        return self._call(self._manager.scale(replicas, is_forced))

    def drain(self, replica: str, at_once: bool) -> None:
        """Replace a replica; see `DeploymentManager.drain`."""
        self._call(self._manager.drain(replica, at_once))

    def leave_node(self, node: str, is_urgent: bool) -> tuple[str, ...]:
        """Move all replicas off a node; see `DeploymentManager.leave_node`."""
        return self._call(self._manager.leave_node(node, is_urgent))

    def status(self) -> DeploymentStatus:
        """Return the status of the deployment; see `DeploymentManager.status`."""
        return self._call(self._manager.status())

    def down(self, grace_s: float) -> None:
        """Drain and stop every replica, then the registry; the caller, or else this actor, ends the actor.

        A call beside another one hastens or delays it, and both return; one that comes later returns at once.
        """
        try:
            call = self._submit(self._manager.down(grace_s))
        except NotReady:
            return
        self._downs.append(call)
        call.result()
        wait(self._downs)  # an earlier one, whose caller may have gone, needs the loop for its last steps
        self._thread.stop(0.0)
        self._end_soon()

    def _end_soon(self) -> None:
        """End this actor for ever if nobody does: it would keep the deployment's name."""
        actor = ray.get_runtime_context().current_actor
        timer = threading.Timer(_END_S, ray.kill, [actor])
        timer.daemon = True
        timer.start()

    def _start(self) -> None:
        self._thread = HostThread(self._build)
        port = self._thread.host.address.rpartition(":")[2]
        self._registry = f"{self._config.advertised_host or self._host}:{port}"
        self._call(self._manager.start(self._registry))

    async def _build(self) -> Host:
        state = await self._manager.restore()
        port = self._config.port
        if state.registry:
            port = await self._wait_for_port(int(state.registry.rpartition(":")[2]))
        elif port and bind_fault(self._host, port):
            raise ConfigError(
                f"controller.port: {self._host}:{port} is in use: choose another port, 0 takes a free one"
            )
        service = registry_service(self._manager.registry)
        policy = registry_access_policy(self._identity)
        return Host(service, f"{self._host}:{port}", access_policy=policy)

    async def _wait_for_port(self, port: int) -> int:
        """Return the port that routers and drafters use, once the earlier controller has closed it.

        Return 0, for any free port, if another process keeps it: the deployment manager then notes that the
        registry has moved, and replaces the drafters.
        """
        for _ in range(int(_PORT_WAIT_S / _PORT_POLL_S)):
            if not bind_fault(self._host, port):
                return port
            await asyncio.sleep(_PORT_POLL_S)
        return 0

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._submit(coroutine).result()

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop; raise NotReady if `down` has closed it."""
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._thread.loop)
        except RuntimeError:
            coroutine.close()
            raise NotReady(f"{self._name} has ended: try again in {_END_S:.0f} s") from None
