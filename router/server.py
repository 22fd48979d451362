"""Puts a router together: tokenizer, fleet, servicer, host."""

from pathlib import Path

import grpc

from fly.clock import Clock, SystemClock
from fly.errors import ConfigError
from fly.messages import Role
from fly.types import SamplingParams
from protos.flyserve.v1.generation_pb2_grpc import add_GenerationServicer_to_server
from router.chat_template import ChatTemplate
from router.clients import Probing
from router.config import RouterConfig
from router.draft_lengths import DraftLengths
from router.fleet import Fleet
from router.generation import Means
from router.http.app import create_app
from router.http.server import HttpServer
from router.sampling_defaults import sampling_defaults
from router.service import GenerationService
from router.servicer import SERVICE_NAME, GenerationServicer
from router.tokenizer import Tokenizer
from services.common.host import Host, Service
from services.common.model_source import model_folder
from services.common.registry import EndpointSource, WatchedRegistry, listed_endpoints
from services.common.telemetry.metrics.router import router_observer
from services.common.telemetry.process import Telemetry
from services.common.token_map import token_map_hash

_SIMULATED = "simulated"
"""Architecture whose token ids are numbers without text: any tokenizer will do."""


async def create_host(
    config: RouterConfig, clock: Clock | None = None, credentials: grpc.ServerCredentials | None = None
) -> Host:
    """A host that serves this configuration, not yet started; a target is there.

    Raises:
        ConfigError: Tokenizer, targets and drafters do not fit together.
        ModelError: The model cannot be found, or has no usable tokenizer.
        NotReady: No target answered in time.
    """
    clock = clock or SystemClock()
    folder = model_folder(config.model, has_weights=False)
    tokenizer = Tokenizer.load(folder)
    template, defaults = ChatTemplate(tokenizer, config.chat_template), sampling_defaults(folder)
    probing = Probing(config.probe_interval_s, config.probe_timeout_s)
    fleet = Fleet(_source(config, clock), config.balancing, clock, probing)
    try:
        await fleet.start(config.start_timeout_s)
        _check_tokenizer(tokenizer, fleet, folder)
    except BaseException:
        await fleet.close()
        raise
    telemetry = Telemetry(config.telemetry, "router")
    observer, lengths = router_observer(telemetry.registry), DraftLengths(clock)
    means = Means(fleet, tokenizer, template, config, clock, lengths, telemetry.tracer, observer)
    generation = GenerationService(means)

    def register(server: grpc.aio.Server) -> None:
        add_GenerationServicer_to_server(GenerationServicer(generation), server)

    service = Service(SERVICE_NAME, register, generation.close)
    age_ms = int(config.max_connection_age_s * 1000)
    options = (("grpc.max_connection_age_ms", age_ms),)
    companions = _http(generation, config, defaults)
    return Host(service, config.address, credentials, options, companions, telemetry)


def _http(
    generation: GenerationService, config: RouterConfig, defaults: SamplingParams
) -> tuple[HttpServer, ...]:
    """The HTTP face, where there is to be one."""
    if config.http_port is None:
        return ()
    return (HttpServer(create_app(generation, config, defaults), config.host, config.http_port),)


def _source(config: RouterConfig, clock: Clock) -> EndpointSource:
    if config.registry is not None:
        return WatchedRegistry(config.registry, clock)
    return listed_endpoints({Role.TARGET: config.targets, Role.DRAFTER: config.drafters}, clock)


def _check_tokenizer(tokenizer: Tokenizer, fleet: Fleet, folder: Path) -> None:
    """Refuses a tokenizer whose ids mean something else to a target."""
    own_hash = token_map_hash(folder)
    for target in fleet.targets.replicas:
        info = target.info
        if tokenizer.vocab_size > info.vocab_size:
            found = f"{folder} has {tokenizer.vocab_size} tokens"
            raise ConfigError(f"model: {found}, but {target.name} knows {info.vocab_size}")
        means_nothing = info.architecture == _SIMULATED or not info.token_map_hash
        if not means_nothing and info.token_map_hash != own_hash:
            raise ConfigError(f"model: {folder} maps tokens to other ids than {target.name}")
