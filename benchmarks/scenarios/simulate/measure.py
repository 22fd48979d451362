"""The processes of deployments side by side, closed-loop clients, and what the processes did meanwhile."""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from functools import partial, reduce
from math import ceil
from operator import add, sub

import psutil
import uvloop

from benchmarks.harness.load import Ask, Chunks, Level, cut_window, run_window, slices
from benchmarks.harness.system import DEMO_MODELS
from benchmarks.harness.worker import Worker, worker
from benchmarks.scenarios.simulate.figures import SLICES, MachineUse, Measured
from benchmarks.scenarios.simulate.hosts import Hosts, Sample, Tier
from benchmarks.scenarios.simulate.plan import CAPACITIES, LANGUAGE, SETTINGS, Deployment, Plan, Stage
from fly.messages import Role
from flyserve import AsyncClient
from flyserve.bench.progress import Advance
from flyserve.bench.statistics import mean_tau
from router.config import RouterConfig
from services.engine.simulation.language import SimulatedConfig

_STEP_TIMEOUT_S, _PROBE_S, _PROBE_TIMEOUT_S = 120.0, 2.0, 10.0
"""Timeouts of the router in simulated seconds: it gives no verdict on replicas whose clock is slow."""
_START_S, _CONNECTION_AGE_S = 240.0, 86400.0
_TARGETS_PER_PROCESS = 32
_SPREAD = 0.6
"""Share of the settling time in which the clients start."""


@dataclass(frozen=True, slots=True)
class Running:
    """A running deployment.

    Attributes:
        services: Processes of its targets and drafters.
        routers: Processes of its routers.
        addresses: Addresses of all routers.
    """

    deployment: Deployment
    services: tuple[Worker, ...]
    routers: tuple[Worker, ...]
    addresses: tuple[str, ...]


def start(stack: ExitStack, plan: Plan, deployment: Deployment, dilation: float) -> Running:
    """Start all processes of a deployment; they run until the stack unwinds."""

    def started() -> Worker:
        hosts = stack.enter_context(worker(Hosts, dilation))
        stack.callback(hosts.ask, "stop")
        return hosts

    count = -(-deployment.targets // _TARGETS_PER_PROCESS)
    services, routers = ([started() for _ in range(count)] for _ in range(2))
    targets, drafters, addresses = list[str](), list[str](), list[str]()
    for index, service in enumerate(services):
        own = service.ask("start_replicas", _tiers(plan, deployment, index, count))
        targets += own[0]
        drafters += own[1]
    config = router_config(deployment.streams, targets, drafters, dilation)
    for router, number in zip(routers, shares(deployment.routers, count), strict=True):
        addresses += router.ask("start_routers", config, number)
    return Running(deployment, tuple(services), tuple(routers), tuple(addresses))


def _tiers(plan: Plan, deployment: Deployment, index: int, count: int) -> tuple[Tier, ...]:
    """Return the tiers of one of `count` processes: targets and drafters."""
    models, streams, capacity = plan.models, deployment.streams, CAPACITIES[deployment.scarce]
    targets, drafters = deployment.targets, deployment.drafters
    kv_tokens = models.target.kv_tokens
    if capacity.target_memory is not None:
        kv_tokens = ceil(capacity.target_memory * streams / targets * plan.request_tokens)

    def tier(role: Role, model: SimulatedConfig, replicas: int, kv_tokens: int, places: float) -> Tier:
        held = streams if places == 1 else ceil(places * streams / replicas)
        return Tier(role, model, shares(replicas, count)[index], held, kv_tokens, models.max_batch_tokens)

    return (
        tier(Role.TARGET, models.target_model, targets, kv_tokens, capacity.target_places),
        tier(
            Role.DRAFTER,
            models.drafter_model,
            drafters,
            models.drafter.kv_tokens,
            capacity.drafter_places,
        ),
    )


def router_config(
    streams: int,
    targets: Sequence[str],
    drafters: Sequence[str],
    dilation: float,
    balancing: str = "prefix_affinity",
) -> RouterConfig:
    """Return the configuration of a router on a dilated clock, for this number of concurrent requests."""
    return RouterConfig(
        model=DEMO_MODELS / "target",
        grpc_port=0,
        targets=tuple(targets),
        drafters=tuple(drafters),
        balancing=balancing,
        max_concurrent=streams,
        verify_timeout_s=_STEP_TIMEOUT_S * dilation,
        draft_timeout_s=_STEP_TIMEOUT_S * dilation,
        write_timeout_s=_STEP_TIMEOUT_S * dilation,
        probe_interval_s=_PROBE_S * dilation,
        probe_timeout_s=_PROBE_TIMEOUT_S * dilation,
        max_connection_age_s=_CONNECTION_AGE_S,
        start_timeout_s=_START_S,
    )


def shares(total: int, count: int) -> Sequence[int]:
    """Split a total into `count` parts that differ by at most one."""
    return [total // count + (index < total % count) for index in range(count)]


def measure_stage(plan: Plan, stage: Stage, advance: Advance) -> list[Measured]:
    """Measure every deployment of a stage under every setting; call `advance` after each setting."""
    with ExitStack() as stack, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        systems = [start(stack, plan, each, stage.dilation) for each in stage.deployments]
        found = []
        for setting in stage.settings:
            found += runner.run(_measure_all(plan, stage, systems, setting))
            advance()
        return found


async def _measure_all(plan: Plan, stage: Stage, systems: Sequence[Running], setting: str) -> list[Measured]:
    """Measure all deployments at once, each with its own clients."""
    watch = asyncio.create_task(_watch_machine(plan, stage))
    found = await asyncio.gather(*(_measure(plan, stage, system, setting) for system in systems))
    machine = await watch
    return [make(machine=machine) for make in found]


async def _measure(plan: Plan, stage: Stage, system: Running, setting: str) -> Callable[..., Measured]:
    """Return the measurement of one deployment, except for the use of the whole machine."""
    deployment, dilation = system.deployment, stage.dilation
    settle_s, measure_s = plan.settle_s * dilation, plan.measure_s * dilation
    level = Level(deployment.streams, settle_s, measure_s, _SPREAD * settle_s)
    prompts = make_prompts(f"{deployment} {setting}", plan.prompt_tokens)
    async with AsyncExitStack() as held:
        clients = [
            await held.enter_async_context(AsyncClient(address, retries=0)) for address in system.addresses
        ]
        (streams, begin_s, end_s), services, routers = await asyncio.gather(
            run_window(_ask(clients, setting), prompts, level),
            activity(system.services, level),
            activity(system.routers, level),
        )
    return partial(
        Measured,
        deployment=deployment,
        models=plan.models,
        setting=setting,
        dilation=dilation,
        window=cut_window(setting, deployment.streams, 0, streams, begin_s, end_s),
        slices=slices(streams, begin_s, end_s, SLICES),
        tau=mean_tau([stream.statistics for stream in streams if stream.statistics is not None]),
        services=services,
        routers=routers,
    )


async def _watch_machine(plan: Plan, stage: Stage) -> MachineUse:
    """Return the use of the machine during the window."""
    await asyncio.sleep(plan.settle_s * stage.dilation)
    psutil.cpu_percent()
    clients_s = time.process_time()
    await asyncio.sleep(plan.measure_s * stage.dilation)
    return MachineUse(psutil.cpu_percent() / 100, time.process_time() - clients_s)


async def activity(workers: Sequence[Worker], level: Level) -> Sample:
    """Return what processes do, all together, in the window of a level that begins now."""

    async def samples() -> list[Sample]:
        return list(await asyncio.gather(*(asyncio.wrap_future(each.submit("sample")) for each in workers)))

    await asyncio.sleep(level.settle_s)
    before = await samples()
    await asyncio.sleep(level.measure_s)
    activity: Sample = reduce(add, map(sub, await samples(), before))
    return activity


def _ask(clients: Sequence[AsyncClient], setting: str) -> Ask:
    """Return a function that sends requests to one router after the other."""
    turns, way = itertools.cycle(clients), SETTINGS[setting]

    def ask(prompt: Sequence[int], max_new_tokens: int) -> Chunks:
        return next(turns).stream(prompt, max_new_tokens, speculation=way)

    return ask


def make_prompts(seed: str, num_tokens: int) -> Iterator[Sequence[int]]:
    """Yield random prompts without end, the same ones for the same seed."""
    source, words = random.Random(seed), range(LANGUAGE.first_word, LANGUAGE.vocab_size)
    while True:
        yield source.choices(words, k=num_tokens)
