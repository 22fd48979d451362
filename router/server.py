"""Build a router: connect its parts to a host."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

import grpc
from starlette.applications import Starlette

from flyserve.core.break_even import break_even
from flyserve.core.clock import Clock, SystemClock
from flyserve.core.errors import ConfigError, NotReady
from flyserve.core.messages import Role
from flyserve.v1.generation_pb2_grpc import add_GenerationServicer_to_server
from router.admission.load_reporter import LoadReporter
from router.config import RouterConfig
from router.fair_threads import FairThreads
from router.generation.context import RouterContext
from router.generation.log_limit import LogLimit
from router.generation.observation import record_rejection
from router.http.app import create_app
from router.http.connections import ConnectionPool
from router.http.server import HttpServer
from router.metrics import RouterMetrics
from router.model_files import ModelFiles, read_model
from router.replicas.directory import ReplicaDirectory
from router.replicas.draft_model import DraftModel
from router.replicas.replica import ProbeConfig
from router.requests.grammars import Grammars
from router.security.callers import public_access_policy
from router.security.keys import Keys
from router.security.quotas import ByteLimits, Quotas, call_quotas
from router.service import GenerationService
from router.servicer import SERVICE_NAME, GenerationServicer
from services.common.blocking import in_daemon_thread
from services.common.endpoint_sources import EndpointSource, ListedEndpointSource, RegistryEndpointSource
from services.common.host import Host, Service
from services.common.open_files import most_open_files, raise_file_limit
from services.common.security.identity import Identity
from services.common.telemetry.process import Telemetry

logger = logging.getLogger(__name__)

_MOST_CONNECTIONS = 4096
"""Most connections over gRPC; further ones are closed."""


async def create_host(config: RouterConfig, clock: Clock | None = None) -> Host:
    """Return a host that serves this configuration, not started yet.

    A target is available, unless the deployment scales to zero.

    Raises:
        ConfigError: Tokenizer, targets and drafters do not match; the certificate or the file of API
            keys cannot be used.
        ModelError: The model cannot be found, or has no usable tokenizer.
        NotReady: No target answered in time.
    """
    asyncio.get_running_loop().set_default_executor(FairThreads())
    clock = clock or SystemClock()
    identity = Identity.of(config.security)
    keys = None if (file := config.security.auth_tokens_file) is None else Keys(file)
    model = await in_daemon_thread(partial(read_model, config))
    replicas = await _find_replicas(config, clock, identity, model)
    telemetry = Telemetry(config.telemetry, "router")
    context = await _create_context(config, clock, model, replicas, telemetry)
    service = GenerationService(context)
    byte_limits = ByteLimits(config.max_body_bytes_in_all, config.max_body_bytes_per_key)
    on_rejection = partial(record_rejection, context.metrics, context.rejection_log, "quota")
    quotas = Quotas(clock, byte_limits, on_rejection)
    tasks = await _start_tasks(service, config, clock, identity)
    sidecars = []
    if config.http_port is not None:
        app = create_app(service, config, model, telemetry.registry, quotas, keys)
        sidecars.append(_http_server(app, config, config.http_port, identity))
    return Host(
        Service(SERVICE_NAME, partial(_register, service), tasks.aclose),
        config.address,
        access_policy=public_access_policy(
            config.security, identity, keys, call_quotas(quotas, SERVICE_NAME)
        ),
        options=_connection_options(config),
        sidecars=tuple(sidecars),
        telemetry=telemetry,
    )


def _connection_options(config: RouterConfig) -> Sequence[tuple[str, int]]:
    """Return gRPC's limits of client connections; most files are for replicas and the HTTP API."""
    raise_file_limit()
    return (
        ("grpc.max_connection_age_ms", int(config.max_connection_age_s * 1000)),
        ("grpc.max_allowed_incoming_connections", max(1, min(_MOST_CONNECTIONS, most_open_files() // 4))),
    )


async def _find_replicas(
    config: RouterConfig, clock: Clock, identity: Identity | None, model: ModelFiles
) -> ReplicaDirectory:
    """Return the replicas, checked against the model's files."""
    probing = ProbeConfig(config.probe_interval_s, config.probe_timeout_s)
    replicas = ReplicaDirectory(_source(config, clock, identity), config.balancing, clock, probing, identity)
    try:
        await _find_target(replicas, config)
        replicas.target_fault = model.fault
        for target in replicas.targets.replicas:
            if fault := model.fault(target.info):
                raise ConfigError(f"model: {fault}: {target.name}")
        _log_break_even(replicas, config)
    except BaseException:
        await replicas.close()
        raise
    return replicas


async def _create_context(
    config: RouterConfig, clock: Clock, model: ModelFiles, replicas: ReplicaDirectory, telemetry: Telemetry
) -> RouterContext:
    """Return what all requests share; the processes that compile grammars have started."""
    grammars = Grammars(model.tokenizer.backend.to_str, model.tokenizer.vocab_size, config.limits)
    await grammars.start()
    return RouterContext(
        replicas=replicas,
        draft_model=DraftModel(replicas),
        tokenizer=model.tokenizer,
        chat_template=model.chat_template,
        grammars=grammars,
        config=config,
        clock=clock,
        tracer=telemetry.tracer,
        metrics=RouterMetrics(telemetry.registry, config.served_name, replicas.drafters.acceptances),
        rejection_log=LogLimit(clock),
    )


async def _start_tasks(
    service: GenerationService, config: RouterConfig, clock: Clock, identity: Identity | None
) -> AsyncExitStack:
    """Start what runs beside requests; the stack ends it, and closes the service."""
    tasks = AsyncExitStack()
    tasks.push_async_callback(service.close)
    if config.registry is not None:
        reporter = LoadReporter(
            config.registry, clock, identity, lambda: service.queued_choices, lambda: service.alarms
        )
        await tasks.enter_async_context(reporter.running())
    return tasks


def _register(service: GenerationService, server: grpc.aio.Server) -> None:
    add_GenerationServicer_to_server(GenerationServicer(service), server)


async def _find_target(replicas: ReplicaDirectory, config: RouterConfig) -> None:
    try:
        await replicas.start(config.start_timeout_s, needs_target=not config.scales_to_zero)
    except NotReady as error:
        if config.registry is None:
            raise
        raise NotReady(
            f"{error}; the registry is {config.registry}: flyserve status shows that of the deployment"
        ) from None


def _log_break_even(replicas: ReplicaDirectory, config: RouterConfig) -> None:
    """Log the tau from which speculation pays, as a warning if none does."""
    target, drafter = (
        next((replica.info for replica in pool.replicas), None)
        for pool in (replicas.targets, replicas.drafters)
    )
    found = break_even(target, drafter, config.speculation.draft_length.max)
    if found is not None:
        logger.log(logging.INFO if found.can_pay else logging.WARNING, "%s", found.describe())


def _http_server(app: Starlette, config: RouterConfig, port: int, identity: Identity | None) -> HttpServer:
    pool = ConnectionPool(
        header_timeout_s=config.http.header_timeout_s,
        unread_timeout_s=config.write_timeout_s,
        max_connections=config.http.max_connections,
    )
    tls = identity.server_context() if identity else None
    return HttpServer(app, config.host, port, pool, tls)


def _source(config: RouterConfig, clock: Clock, identity: Identity | None) -> EndpointSource:
    if config.registry is not None:
        return RegistryEndpointSource(config.registry, clock, identity)
    return ListedEndpointSource({Role.TARGET: config.targets, Role.DRAFTER: config.drafters}, clock)
