"""Build a router: tokenizer, replica directory, servicer, host."""

import logging
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import grpc
from starlette.applications import Starlette

from fly.break_even import break_even
from fly.clock import Clock, SystemClock
from fly.errors import ConfigError, NotReady
from fly.messages import ModelInfo, Role
from fly.request import SamplingParams
from protos.flyserve.v1.generation_pb2_grpc import add_GenerationServicer_to_server
from router.admission.load_reporter import LoadReporter
from router.config import RouterConfig
from router.generation.context import RouterContext
from router.generation.draft_lengths import DraftLengths
from router.generation.observation import record_rejection
from router.http.app import create_app
from router.http.connections import ConnectionPool
from router.http.server import HttpServer
from router.metrics import RouterMetrics
from router.replicas.directory import ReplicaDirectory
from router.replicas.draft_model import DraftModel
from router.replicas.pools import ProbeConfig
from router.requests.grammars import Grammars
from router.security.callers import call_quotas, public_access_policy
from router.security.keys import Keys
from router.security.quotas import ByteLimits, Quotas
from router.service import GenerationService
from router.servicer import SERVICE_NAME, GenerationServicer
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer, sampling_defaults
from services.common.blocking import in_daemon_thread
from services.common.endpoint_sources import EndpointSource, ListedEndpointSource, RegistryEndpointSource
from services.common.host import Host, Service
from services.common.model_source import model_folder
from services.common.security.identity import Identity
from services.common.telemetry.process import Telemetry
from services.common.token_map import token_map_hash

logger = logging.getLogger(__name__)

_SIMULATED = "simulated"
"""Architecture of simulated models: their token ids have no text, so any tokenizer is accepted."""


async def create_host(config: RouterConfig, clock: Clock | None = None) -> Host:
    """Return a host that serves this configuration, not started yet.

    A target is available, unless the deployment scales to zero.

    Raises:
        ConfigError: Tokenizer, targets and drafters do not match; the certificate or the file of API
            keys cannot be used.
        ModelError: The model cannot be found, or has no usable tokenizer.
        NotReady: No target answered in time.
    """
    clock = clock or SystemClock()
    identity = Identity.of(config.security)
    keys = None if (file := config.security.auth_tokens_file) is None else Keys(file)
    folder, tokenizer, defaults, own_hash = await in_daemon_thread(partial(_read_model, config.model))
    template = ChatTemplate(tokenizer, config.chat_template)
    if lost := template.lost_tokens():
        logger.warning("chat template: control tokens %s become plain text: write them with + or ~", lost)
    probing = ProbeConfig(config.probe_interval_s, config.probe_timeout_s)
    replicas = ReplicaDirectory(_source(config, clock, identity), config.balancing, clock, probing, identity)
    try:
        await _find_target(replicas, config)
        replicas.target_fault = partial(_tokenizer_fault, tokenizer, folder, own_hash)
        _check_tokenizer(replicas)
        _log_break_even(replicas, config)
    except BaseException:
        await replicas.close()
        raise
    grammars = Grammars(tokenizer.backend.to_str, tokenizer.vocab_size, config.limits)
    await grammars.start()
    telemetry = Telemetry(config.telemetry, "router")
    metrics, lengths = RouterMetrics(telemetry.registry, config.served_name), DraftLengths(clock)
    context = RouterContext(
        replicas=replicas,
        draft_model=DraftModel(replicas),
        tokenizer=tokenizer,
        chat_template=template,
        grammars=grammars,
        config=config,
        clock=clock,
        draft_lengths=lengths,
        tracer=telemetry.tracer,
        metrics=metrics,
    )
    generation = GenerationService(context)

    def register(server: grpc.aio.Server) -> None:
        add_GenerationServicer_to_server(GenerationServicer(generation), server)

    byte_limits = ByteLimits(config.max_body_bytes_in_all, config.max_body_bytes_per_key)
    quotas = Quotas(clock, byte_limits, partial(record_rejection, metrics))
    tasks = AsyncExitStack()
    tasks.push_async_callback(generation.close)
    if config.registry is not None:
        reporter = LoadReporter(config.registry, clock, identity, lambda: generation.queued_choices)
        await tasks.enter_async_context(reporter.running())
    service = Service(SERVICE_NAME, register, tasks.aclose)
    age_ms = int(config.max_connection_age_s * 1000)
    options = (("grpc.max_connection_age_ms", age_ms),)
    app = (
        None
        if config.http_port is None
        else create_app(generation, config, defaults, telemetry.registry, quotas, keys)
    )
    sidecars = () if app is None else (_http_server(app, config, identity),)
    access_policy = public_access_policy(config.security, identity, keys, call_quotas(quotas, SERVICE_NAME))
    return Host(
        service,
        config.address,
        access_policy=access_policy,
        options=options,
        sidecars=sidecars,
        telemetry=telemetry,
    )


def _read_model(model: Path) -> tuple[Path, Tokenizer, SamplingParams, str]:
    """Return a model's folder, which may have to be downloaded, and what a router needs of it."""
    folder = model_folder(model, has_weights=False)
    return folder, Tokenizer.load(folder), sampling_defaults(folder), token_map_hash(folder)


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


def _http_server(app: Starlette, config: RouterConfig, identity: Identity | None) -> HttpServer:
    assert config.http_port is not None
    pool = ConnectionPool(
        header_timeout_s=config.http.header_timeout_s,
        unread_timeout_s=config.write_timeout_s,
        max_connections=config.http.max_connections,
    )
    tls = identity.server_context() if identity else None
    return HttpServer(app, config.host, config.http_port, pool, tls)


def _source(config: RouterConfig, clock: Clock, identity: Identity | None) -> EndpointSource:
    if config.registry is not None:
        return RegistryEndpointSource(config.registry, clock, identity)
    return ListedEndpointSource({Role.TARGET: config.targets, Role.DRAFTER: config.drafters}, clock)


def _check_tokenizer(replicas: ReplicaDirectory) -> None:
    """Check that the tokenizer's ids mean the same to every target; raises ConfigError."""
    for target in replicas.targets.replicas:
        if fault := replicas.target_fault(target.info):
            raise ConfigError(f"model: {fault}: {target.name}")


def _tokenizer_fault(tokenizer: Tokenizer, folder: Path, own_hash: str, info: ModelInfo) -> str:
    """Return the reason why the router's tokenizer does not fit a target; empty if it does."""
    if tokenizer.vocab_size > info.vocab_size:
        return f"{folder} has {tokenizer.vocab_size} tokens, but the target has {info.vocab_size}"
    takes_any = info.architecture == _SIMULATED or not info.token_map_hash
    if not takes_any and info.token_map_hash != own_hash:
        return f"{folder} maps tokens to other ids than the target"
    return ""
