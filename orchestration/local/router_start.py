"""Start the router of a local deployment: each time for the deployment that is desired then."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from flyserve.core.errors import ConfigError, NotReady
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

    A deployment with which a start has just failed, such as one with a fault that only the router finds, is
    not started twice in a row: the next start has the one that served last.

    Attributes:
        module: Module to run as the router.
        folder: Folder of its configuration and its logs.
        timeout_s: Time limit for it to find a target, and to be ready.
        desired: Last deployment that served; before the first start, the one to start.
        read: Returns the present one. If it raises, the last one that served is started.
        failed: Deployment of the last start, if that failed.
    """

    module: str
    folder: Path
    timeout_s: float
    desired: Desired
    read: Callable[[], Desired]
    failed: Desired | None = None

    @contextmanager
    def __call__(self, addresses: Sequence[str]) -> Iterator[ServiceProcess]:
        """Run a router at these addresses, or where the deployment says if there are none."""
        wanted = self._wanted()
        with ExitStack() as running:
            try:
                process = running.enter_context(self._process(wanted, addresses))
            except (ConfigError, NotReady):
                self.failed = wanted
                raise
            self.desired, self.failed = wanted, None
            yield process

    def _wanted(self) -> Desired:
        with suppress(Exception):
            present = self.read()
            return replace(self.desired, registry=present.registry) if present == self.failed else present
        return self.desired

    def _process(self, wanted: Desired, addresses: Sequence[str]) -> AbstractContextManager[ServiceProcess]:
        drain_s = wanted.deployment.rollout.drain_s
        content = router_config(wanted.deployment, wanted.registry, self.timeout_s, drain_s)
        ports = dict(zip(("grpc_port", "http_port"), map(_port_of, addresses), strict=False))
        config = self.folder / "router.yaml"
        config.write_text(yaml.safe_dump({**content, **ports}), encoding="utf-8")
        command = (self.module, "--config", str(config))
        return service_process(command, os.environ, self.folder, self.timeout_s, drain_s + STOP_TIMEOUT_S)


def _port_of(address: str) -> int:
    return int(address.rpartition(":")[2])
