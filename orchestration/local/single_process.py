"""Run a whole deployment in this process, without Ray: its services call each other without sockets."""

import asyncio
import importlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from flyserve.core.break_even import break_even
from flyserve.core.errors import ConfigError, NotReady
from flyserve.core.messages import ModelInfo, Role
from orchestration.control.load_stream import load_stream
from orchestration.deployment.file import Deployment
from orchestration.deployment.plan import ReplicaSpec, plan, router_config
from orchestration.deployment.tiers import ModelTier, ScaledTier, VllmTier
from orchestration.local.folder import own_folder
from orchestration.local.local_ray import publish_local_deployment
from orchestration.local.ports import require_free_ports
from router.config import RouterConfig
from router.server import create_host
from services.common.actor import ServiceActor
from services.common.config import changed_values, parse
from services.common.host import FAILED_GRACE_S, Host
from services.common.in_process.server import SCHEME
from services.common.launch import serve_until_stopped, stop_events
from services.common.telemetry.config import TelemetryConfig, TelemetrySection
from services.common.telemetry.logs import configure_logging

_OF_SOCKETS = frozenset({"registry", "security", "ports"})
"""Keys of a replica with sockets: within a process it is found by its name, and nobody else can call it."""
_ROLE = "all"
"""Role of the process in its log."""
_START_TIMEOUT_S = 10.0
"""Time limit for the router to find the target, which serves by then."""


Replicas = Sequence[tuple[ReplicaSpec, Host]]
OnStop = Callable[[Callable[[], bool]], object]


@dataclass(frozen=True, slots=True)
class SingleProcess:
    """A deployment that serves.

    Attributes:
        address: host:port of the public gRPC service.
        http_url: URL of the OpenAI-compatible HTTP API; None if it is off.
        speculation: The tau from which speculation pays, in one line; empty if unknown.
    """

    address: str
    http_url: str | None
    speculation: str


def run_single_process(
    deployment: Deployment,
    on_load: Callable[[str], None],
    on_ready: Callable[[SingleProcess], None],
    on_stop: OnStop,
    verbose: bool = False,
) -> None:
    """Serve a deployment until a stop signal: SIGTERM, SIGHUP or SIGINT.

    Running responses then have `rollout.drain_s` to finish, or until a second signal. The model folders must
    be absolute.

    Args:
        deployment: What to serve.
        on_load: Receives the name of each replica before its model is loaded.
        on_ready: Called once the deployment serves.
        on_stop: Called when a signal arrives, before the running responses finish, with a function that
            returns True once they have.
        verbose: Log more than errors.

    Raises:
        ConfigError: The deployment needs several processes, or a port is in use.
        ModelError: A model cannot be found or served.
        NotReady: A replica has failed.
        KeyboardInterrupt: A signal arrived before the deployment served.
    """
    if faults := list(_faults(deployment)):
        raise ConfigError("; ".join(faults))
    require_free_ports(deployment)
    telemetry = {**changed_values(deployment.telemetry, TelemetrySection), "deployment": deployment.name}
    configure_logging(parse(TelemetryConfig, telemetry, "telemetry"), _ROLE)
    logging.getLogger().setLevel(logging.INFO if verbose else logging.ERROR)
    import uvloop

    try:
        with own_folder() as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(deployment, on_load, on_ready, on_stop, folder))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _faults(deployment: Deployment) -> Iterator[str]:
    """Yield why one process cannot serve a deployment."""
    remedy = "leave out --single-process"
    for role, tier in deployment.tiers.items():
        if role is Role.SUB_DRAFTER and tier.replicas > 1:
            yield f"{role}.replicas: is {tier.replicas}, but one process has at most one: {remedy}"
        if isinstance(tier, ScaledTier) and tier.autoscaling is not None:
            yield f"{role}.autoscaling: one process cannot be scaled: {remedy}"
        if isinstance(tier, VllmTier):
            yield f"{role}.engine: is vllm, which needs a process of its own: {remedy}"
        elif isinstance(tier, ModelTier) and tier.num_processes > 1:
            yield f"{role}.shards: is {tier.num_processes}, each of them a process: {remedy}"
    gpus = [tier.num_gpus for tier in deployment.tiers.values() if isinstance(tier, ModelTier)]
    if sum(gpus) > 1:
        yield f"gpus: the tiers have {sum(gpus):g} together, but one process computes on one: {remedy}"
    if 0 in gpus and any(gpus):
        yield f"gpus: is 0 for one tier and not for another, but one process computes on one device: {remedy}"


async def _serve(
    deployment: Deployment,
    on_load: Callable[[str], None],
    on_ready: Callable[[SingleProcess], None],
    on_stop: OnStop,
    folder: Path,
) -> None:
    async with stop_events() as stop, _replicas(deployment, on_load) as replicas:
        router = await create_host(_router_config(deployment, replicas))
        speculation = await _speculation(deployment, replicas)

        def ready(addresses: Sequence[str]) -> None:
            address, *urls = addresses
            publish_local_deployment(folder, deployment.name, "", address)
            on_ready(SingleProcess(address, urls[0] if urls else None, speculation))

        drained = threading.Event()
        watches = [asyncio.create_task(_end_with(host, router)) for _, host in replicas]
        try:
            drain_s = deployment.rollout.drain_s
            await serve_until_stopped(router, drain_s, stop, ready, lambda: on_stop(drained.is_set))
        finally:
            drained.set()
            for watch in watches:
                watch.cancel()
        if failed := [spec.replica for spec, host in replicas if host.failed.is_set()]:
            raise NotReady(f"{failed[0]} can serve no more: the log says why")


@asynccontextmanager
async def _replicas(deployment: Deployment, on_load: Callable[[str], None]) -> AsyncIterator[Replicas]:
    """Serve the replicas of every tier while the block runs."""
    replicas: list[tuple[ReplicaSpec, Host]] = []
    try:
        for spec in plan(deployment, registry=""):
            on_load(spec.replica)
            host = await _build(spec, _addresses(replicas, Role.SUB_DRAFTER))
            await host.start()
            replicas.append((spec, host))
        yield replicas
    finally:
        for _, host in reversed(replicas):
            await host.drain(FAILED_GRACE_S)


def _addresses(replicas: Replicas, role: Role) -> list[str]:
    return [host.address for spec, host in replicas if spec.role is role]


async def _build(spec: ReplicaSpec, sub_drafters: Sequence[str]) -> Host:
    """Load a replica, by the class of its actor; it is not started yet."""
    module, _, name = spec.actor.partition(":")
    config = {key: value for key, value in {**spec.config, **spec.hints}.items() if key not in _OF_SOCKETS}
    config["address"] = f"{SCHEME}{spec.replica}"
    if spec.role is Role.DRAFTER and sub_drafters:
        (config["sub_drafter"],) = sub_drafters
    actor: type[ServiceActor] = getattr(importlib.import_module(module), name)
    return await actor.build(config)


def _router_config(deployment: Deployment, replicas: Replicas) -> RouterConfig:
    content = router_config(deployment, "", _START_TIMEOUT_S, deployment.rollout.drain_s)
    del content["registry"]
    content["targets"] = _addresses(replicas, Role.TARGET)
    content["drafters"] = _addresses(replicas, Role.DRAFTER)
    return parse(RouterConfig, content, "router")


async def _end_with(replica: Host, router: Host) -> None:
    """End the router when a replica fails: nothing would start another one."""
    await replica.failed.wait()
    router.failed.set()


async def _speculation(deployment: Deployment, replicas: Replicas) -> str:
    """Return the tau from which drafts pay, in one line; empty if the costs are unknown."""
    infos: dict[Role, ModelInfo | None] = {}
    for role, host in {spec.role: host for spec, host in replicas}.items():
        async with aclosing(load_stream(role, host.address, None)) as reports:
            infos[role], _ = await anext(reports)
    length = deployment.speculation.draft_length.max
    found = break_even(infos.get(Role.TARGET), infos.get(Role.DRAFTER), length)
    return "" if found is None else found.describe()
