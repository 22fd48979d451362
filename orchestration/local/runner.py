"""Run a whole deployment on this machine: Ray, the controller, the services, a router."""

import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from flyserve.core.errors import ConfigError, ModelError, NotReady
from flyserve.core.messages import Role
from flyserve.signals import stop_signals
from orchestration.control.status import DeploymentStatus, ReplicaState, ReplicaStatus
from orchestration.deployment.file import Deployment
from orchestration.deployment.plan import ACTORS, plan
from orchestration.deployment.scaling import at_its_largest
from orchestration.deployment.tiers import ModelTier
from orchestration.local.cpus import logical_cpus
from orchestration.local.folder import temporary_folder
from orchestration.local.local_ray import local_ray, prepare_environment, publish_local_deployment
from orchestration.local.orphans import children, reap_orphans
from orchestration.local.ports import require_free_ports
from orchestration.local.processes import StopSignals
from orchestration.local.router_start import STOP_TIMEOUT_S, Desired, RouterStart
from orchestration.local.supervisor import Report, RestartLimit, SupervisedService
from orchestration.ray.controller_client import (
    create_controller,
    get_result,
    has_controller,
    stop_controller,
)
from services.common.loading_progress import VARIABLE, read_progress
from services.common.machine.machine import Machine
from services.common.model_source import model_folder

_POLL_S = 0.1
_REPLICA_GRACE_S = 5.0
"""Time that streams of the replicas have to finish, once the router and with it all of its own have ended."""
_ANSWER_TIMEOUT_S = 30.0
_DESIRED_TIMEOUT_S = 5.0
"""Time for the controller to say what a router that is restarted should serve; clients wait meanwhile."""

Progress = Callable[[Sequence[ReplicaStatus]], None]


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """Options of a local run.

    Attributes:
        router: Module to run as the router.
        router_restarts: Limit of the restarts of a router that has ended by itself.
        startup_timeout_s: Time limit for Ray to start, then for every replica, and then the router, to be
            ready.
        verbose: Print the services' logs.
        machine: The machine that the deployment was settled for; None leaves the number of GPUs to Ray.
    """

    actors: Mapping[Role, str] = field(default_factory=lambda: ACTORS)
    router: str = "router"
    router_restarts: RestartLimit = field(default_factory=RestartLimit)
    startup_timeout_s: float = 600.0
    verbose: bool = False
    machine: Machine | None = None


@dataclass(frozen=True, slots=True)
class LocalDeployment:
    """A running local deployment.

    Attributes:
        registry: host:port of the controller's registry.
        own_children: Ids of the processes that this one has started, without the router.
    """

    name: str
    controller: Any
    registry: str
    router: SupervisedService
    signals: StopSignals
    own_children: Set[int]

    @property
    def address(self) -> str:
        """Return host:port of the public gRPC service."""
        return self.router.process.address

    @property
    def http_url(self) -> str | None:
        """Return the URL of the OpenAI-compatible HTTP API; None if it is off."""
        return self.router.process.urls[0] if self.router.process.urls else None

    def status(self) -> DeploymentStatus:
        """Return the status of the deployment and every replica."""
        status: DeploymentStatus = get_result(self.controller.status.remote(), _ANSWER_TIMEOUT_S)
        return status

    def has_drained(self) -> bool:
        """Return True once the router has ended, and with it all responses."""
        return self.router.process.has_ended(0.0)

    def wait(self, report: Report = lambda line: None) -> None:
        """Wait until `flyserve down` has ended the deployment, or a signal interrupts; keep the router up.

        Raises:
            NotReady: The router has ended by itself too often.
        """
        while has_controller(self.name):
            self.signals.check()
            self.router.keep_up(1.0, report)
            reap_orphans(self.own_children | {self.router.process.pid})


@contextmanager
def local_deployment(
    deployment: Deployment, on_progress: Progress, options: LocalOptions | None = None, source: str = ""
) -> Iterator[LocalDeployment]:
    """Start a deployment on this machine; stop it in reverse order when the block ends.

    Only for the main thread: stop signals raise KeyboardInterrupt in the block. Running responses then
    have `rollout.drain_s` to finish, or until a second signal. The model folders must be absolute; `source`
    is the file that the deployment was read from, to show to people.

    Raises:
        ConfigError: A port of the router is in use, or has another use.
        ModelError: A model cannot be found, or a replica cannot be started; the message says which and why.
        NotReady: A replica or the router was not ready in time; the message says which.
    """
    options = options or LocalOptions()
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("Ray is not installed: pip install 'flyserve[router,engine,ray]'")
    require_free_ports(deployment)
    for tier in (deployment.target, deployment.drafter):
        if isinstance(tier, ModelTier):
            model_folder(tier.model)  # downloaded before anything is started: no start timeout includes it
    prepare_environment()
    with StopSignals() as signals, ExitStack() as stack:
        deployed: LocalDeployment | None = None
        try:
            deployed = _start(stack, signals, deployment, on_progress, options, source)
            stop_signals.begin_serving()
            yield deployed
        finally:
            # NOTE: before the stack unwinds: no signal may interrupt the stop.
            if deployed is None:
                signals.ignore()
            else:
                signals.hasten(deployed.router.process)


def _start(
    stack: ExitStack,
    signals: StopSignals,
    deployment: Deployment,
    on_progress: Progress,
    options: LocalOptions,
    source: str,
) -> LocalDeployment:
    folder = stack.enter_context(temporary_folder())
    specs = plan(at_its_largest(deployment), "", options.actors)
    num_cpus = logical_cpus(specs, deployment.rollout.surge)
    marks = {spec.node_resource for spec in specs if spec.node_resource is not None}
    timeout_s, machine = options.startup_timeout_s, options.machine
    num_gpus = None if machine is None else len(machine.usable_gpus)
    os.environ[VARIABLE] = str(folder)
    stack.callback(os.environ.pop, VARIABLE, None)
    ray = local_ray(num_cpus, marks, folder, options.verbose, timeout_s, num_gpus)
    ray_address = stack.enter_context(ray)
    own_children = children()
    signals.check()
    controller = create_controller(deployment, "127.0.0.1", options.actors)
    registry = get_result(controller.address.remote(), timeout_s)
    get_result(controller.apply.remote(deployment.model_dump_json(), source, False), timeout_s)
    publish_local_deployment(folder, deployment.name, ray_address, machine=machine)

    def report(status: Sequence[ReplicaStatus]) -> None:
        signals.check()
        on_progress([with_progress(row, folder) for row in status])

    _wait_until_ready(controller, report, timeout_s)
    # NOTE: registered only now: a start that fails earlier has nothing to drain.
    drain_s = deployment.rollout.drain_s
    stack.callback(_stop, controller, min(drain_s, _REPLICA_GRACE_S))
    first = Desired(deployment, registry)
    start = RouterStart(options.router, folder, timeout_s, first, partial(_desired, controller))
    router = stack.enter_context(SupervisedService(start, options.router_restarts))
    publish_local_deployment(folder, deployment.name, ray_address, router.process.address, machine)
    return LocalDeployment(deployment.name, controller, registry, router, signals, own_children)


def with_progress(row: ReplicaStatus, folder: Path) -> ReplicaStatus:
    """Return the status of a replica; while it starts without a fault, its detail is the progress."""
    if row.state is not ReplicaState.STARTING or row.detail:
        return row
    return replace(row, detail=read_progress(folder, row.replica))


def _desired(controller: Any) -> Desired:
    """Return the present deployment; raises FlyServeError if the controller does not answer."""
    deployment = get_result(controller.deployment.remote(), _DESIRED_TIMEOUT_S)
    if deployment is None:
        raise NotReady("no deployment is applied")
    registry = get_result(controller.address.remote(), _DESIRED_TIMEOUT_S)
    return Desired(Deployment.model_validate_json(deployment), registry)


def _stop(controller: Any, grace_s: float) -> None:
    """Let running streams finish; every process ends with Ray in any case."""
    with suppress(NotReady):
        stop_controller(controller, grace_s, grace_s + STOP_TIMEOUT_S)


def _wait_until_ready(controller: Any, on_progress: Progress, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        status: DeploymentStatus = get_result(controller.status.remote(), timeout_s)
        on_progress(status.replicas)
        for replica in status.replicas:
            if replica.state is ReplicaState.FAILED:
                raise ModelError(f"{replica.replica} cannot be started: {replica.detail}")
        missing = [
            f"{replica.replica} ({replica.detail})" if replica.detail else replica.replica
            for replica in status.replicas
            if replica.state is not ReplicaState.READY
        ]
        if status.replicas and not missing:
            return
        if time.monotonic() > deadline:
            raise NotReady(
                f"{len(missing)} of {len(status.replicas)} replicas were not ready after {timeout_s:.0f} s: "
                + ", ".join(missing)
            )
        time.sleep(_POLL_S)
