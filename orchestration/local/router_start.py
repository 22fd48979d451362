"""Start the router of a local deployment: each time for the deployment that is desired then."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from flyserve.core.errors import FlyServeError
from orchestration.deployment.file import Deployment
from orchestration.deployment.plan import router_config
from orchestration.local.processes import ServiceProcess, service_process

STOP_TIMEOUT_S = 10.0
"""Time that a router has to end after its running responses."""


@dataclass(frozen=True, slots=True)
class Desired:
    """The deployment that should run, and host:port of the registry that lists its replicas."""

    deployment: Deployment
    registry: str


@dataclass(slots=True)
class RouterStart:
    """Starts the router of a deployment that may be changed between two starts.

    Attributes:
        module: Module to run as the router.
        folder: Folder of its configuration and its logs.
        timeout_s: Time limit for it to find a target, and to be ready.
        desired: Last known deployment.
        read: Returns the present one. If it raises FlyServeError, the last known one is started.
    """

    module: str
    folder: Path
    timeout_s: float
    desired: Desired
    read: Callable[[], Desired]

    def __call__(self, addresses: Sequence[str]) -> AbstractContextManager[ServiceProcess]:
        """Return a router at these addresses, or where the deployment says if there are none."""
        with suppress(FlyServeError):
            self.desired = self.read()
        deployment = self.desired.deployment
        drain_s = deployment.rollout.drain_s
        content = router_config(deployment, self.desired.registry, self.timeout_s, drain_s)
        ports = dict(zip(("grpc_port", "http_port"), map(_port_of, addresses), strict=False))
        config = self.folder / "router.yaml"
        config.write_text(yaml.safe_dump({**content, **ports}), encoding="utf-8")
        command = (self.module, "--config", str(config))
        return service_process(command, os.environ, self.folder, self.timeout_s, drain_s + STOP_TIMEOUT_S)


def _port_of(address: str) -> int:
    return int(address.rpartition(":")[2])
