"""The processes of simulated deployments on one dilated clock, their clients, and the windows of these."""

import asyncio
import random
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from operator import add, sub

import uvloop

from benchmarks.harness.client import speculation
from benchmarks.harness.command import Context
from benchmarks.harness.load import Chunks, Level, Stream, Window, cut_window, run_window
from benchmarks.harness.system import DEMO_MODELS
from benchmarks.harness.worker import Worker, worker
from benchmarks.scenarios.capacity.hosts import Hosts, Sample, Tier
from benchmarks.scenarios.capacity.plan import (
    CO_LOCATED,
    LANGUAGE,
    MAX_BATCH_TOKENS,
    PAUSE_S,
    SETTINGS,
    Deployment,
    Levels,
    Models,
    Plan,
    Stage,
)
from fly.messages import Role
from fly.request import SpeculationParams
from fly.types import Mode
from flyserve import AsyncClient
from flyserve.bench.progress import progress_bar
from flyserve.bench.statistics import mean_tau, share
from router.config import RouterConfig

_STEP_TIMEOUT_S, _PROBE_S, _PROBE_TIMEOUT_S = 120.0, 2.0, 10.0
"""Timeouts of the router in simulated seconds: it gives no verdict on replicas whose clock is slow."""
_START_S, _CONNECTION_AGE_S = 240.0, 86400.0
_TARGETS_PER_PROCESS = 32
_SPREAD = 0.6
"""Share of the settling time in which the clients start."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One deployment under one setting, in one window.

    Attributes:
        window: Tokens and waits of all clients, in real seconds.
        tau: Tokens emitted in rounds with a draft per such round, of responses that have ended.
        late: Time that forwards took beyond their cost, as a share of their cost.
        outside: Share of the clients' time in which no service had a step of them.
        deployment: The replicas; None for a placement.
    """

    window: Window
    dilation: float
    tau: float
    late: float
    outside: float
    deployment: Deployment | None = None

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all clients per simulated second."""
        return self.window.tokens_per_s * self.dilation


Placements = dict[int, list[dict[str, Measured]]]
"""Windows by number of clients, each with all placements side by side."""


@dataclass(frozen=True, slots=True)
class Running:
    """A running deployment: processes of its targets and drafters, and the addresses of its routers."""

    services: tuple[Worker, ...]
    addresses: tuple[str, ...]


def hosts(stack: ExitStack, dilation: float) -> Worker:
    """Start a process for hosts on a dilated clock; it runs until the stack unwinds."""
    made = stack.enter_context(worker(Hosts, dilation))
    stack.callback(made.ask, "stop")
    return made


def tiers(models: Models, streams: int, targets: int, drafters: int, ahead: float = 0) -> tuple[Tier, Tier]:
    """Return the tiers of targets and drafters; each replica has room for all streams."""
    target, drafter = models.target, models.drafter
    return (
        Tier(Role.TARGET, models.target_model, targets, streams, target.kv_tokens, MAX_BATCH_TOKENS),
        Tier(
            Role.DRAFTER, models.drafter_model, drafters, streams, drafter.kv_tokens, MAX_BATCH_TOKENS, ahead
        ),
    )


def start_placement(stack: ExitStack, plan: Plan, name: str, levels: Levels) -> Running:
    """Start a placement's targets, drafters and routers; co-located pairs have a router each."""
    services, routers = hosts(stack, levels.dilation), hosts(stack, levels.dilation)
    streams, models = max(levels.clients), plan.models(plan.shards)
    if name == CO_LOCATED:
        target, drafter = tiers(models, streams, plan.groups, plan.groups)
        addresses = services.ask("start_pairs", target, drafter, PAUSE_S)
        fleets = [([own], [beside]) for own, beside in zip(*addresses, strict=True)]
    else:
        made = tiers(models, streams, plan.groups - plan.drafters, plan.drafters, plan.ahead_sequences)
        targets, drafters = services.ask("start_replicas", made)
        if delay_s := plan.placements[name]:
            drafters = [services.ask("start_link", each, delay_s) for each in drafters]
        fleets = [(targets, drafters)]
    configs = (router_config(streams, *fleet, levels.dilation, "least_load") for fleet in fleets)
    return Running((services,), tuple(routers.ask("start_routers", config, 1)[0] for config in configs))


def start_deployment(stack: ExitStack, plan: Plan, deployment: Deployment, dilation: float) -> Running:
    """Start all processes of a deployment."""
    count = -(-deployment.targets // _TARGETS_PER_PROCESS)
    services, routers = ([hosts(stack, dilation) for _ in range(count)] for _ in range(2))
    targets, drafters, addresses = list[str](), list[str](), list[str]()
    numbers = zip(shares(deployment.targets, count), shares(deployment.drafters, count), strict=True)
    for service, own in zip(services, numbers, strict=True):
        found = service.ask("start_replicas", tiers(plan.models(1), deployment.streams, *own))
        targets += found[0]
        drafters += found[1]
    config = router_config(deployment.streams, targets, drafters, dilation)
    for router, number in zip(routers, shares(deployment.routers, count), strict=True):
        addresses += router.ask("start_routers", config, number)
    return Running(tuple(services), tuple(addresses))


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


def measure_levels(plan: Plan, context: Context, levels: Levels) -> Placements:
    """Measure one number of clients after the other, all placements at once."""
    way = speculation(Mode.FLY, plan.draft_length)
    with ExitStack() as stack, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        systems = {name: start_placement(stack, plan, name, levels) for name in plan.placements}

        def window(clients: int, turn: int) -> dict[str, Measured]:
            prompts = make_prompts(f"{clients} {turn}", plan.prompt_tokens)
            level = Level(clients, levels.settle_s, levels.measure_s)
            found = (measure_window(each, level, way, levels.dilation, prompts) for each in systems.values())
            return dict(zip(systems, runner.run(_gather(found)), strict=True))

        return context.interleave("all placements", levels.clients, plan.repeat, window, warm_ups=0)


def measure_sizes(plan: Plan, context: Context, stage: Stage) -> list[Measured]:
    """Measure every deployment of a stage under every setting, all deployments at once."""
    with (
        ExitStack() as stack,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        progress_bar(context.console, len(stage.settings), f"{stage.dilation:g} times slower") as advance,
    ):
        systems = {each: start_deployment(stack, plan, each, stage.dilation) for each in stage.deployments}
        found = list[Measured]()
        for name in stage.settings:
            windows = [
                measure_window(
                    system,
                    Level(shape.streams, plan.settle_s, plan.measure_s),
                    SETTINGS[name],
                    stage.dilation,
                    make_prompts(f"{shape} {name}", plan.prompt_tokens),
                    name,
                )
                for shape, system in systems.items()
            ]
            measured = runner.run(_gather(windows))
            found += [replace(each, deployment=own) for each, own in zip(measured, systems, strict=True)]
            advance()
        return found


async def _gather(work: Iterable[Awaitable[Measured]]) -> list[Measured]:
    return list(await asyncio.gather(*work))


async def measure_window(
    system: Running,
    level: Level,
    way: SpeculationParams,
    dilation: float,
    prompts: Iterator[Sequence[int]],
    setting: str = "",
) -> Measured:
    """Measure one deployment; its clients are shared evenly among its routers, and stay there.

    The times of `level` are simulated seconds.
    """
    settle_s, measure_s = level.settle_s * dilation, level.measure_s * dilation
    real = Level(level.concurrency, settle_s, measure_s, _SPREAD * settle_s)

    async def load(address: str, own: int) -> tuple[list[Stream], float, float]:
        async with AsyncClient(address, retries=0) as client:

            def ask(prompt: Sequence[int], max_new_tokens: int) -> Chunks:
                return client.stream(prompt, max_new_tokens, speculation=way)

            return await run_window(ask, prompts, replace(real, concurrency=own))

    numbers = zip(system.addresses, shares(level.concurrency, len(system.addresses)), strict=True)
    loads = asyncio.gather(*(load(address, own) for address, own in numbers if own))
    found, spent = await asyncio.gather(loads, activity(system.services, real))
    streams = [stream for own, _, _ in found for stream in own]
    return Measured(
        window=cut_window(setting, level.concurrency, 0, streams, found[0][1], found[0][2]),
        dilation=dilation,
        tau=mean_tau([stream.statistics for stream in streams if stream.statistics is not None]),
        late=share(spent.late_s, spent.asked_s),
        outside=1 - share(spent.verify_s + spent.draft_s, level.concurrency * spent.at_s),
    )


async def activity(workers: Sequence[Worker], level: Level) -> Sample:
    """Return what processes do, all together, in the window of a level that begins now."""

    async def samples() -> list[Sample]:
        return list(await asyncio.gather(*(asyncio.wrap_future(each.submit("sample")) for each in workers)))

    await asyncio.sleep(level.settle_s)
    before = await samples()
    await asyncio.sleep(level.measure_s)
    activity: Sample = reduce(add, map(sub, await samples(), before))
    return activity


def make_prompts(seed: str, num_tokens: int) -> Iterator[Sequence[int]]:
    """Yield random prompts without end, the same ones for the same seed."""
    source, words = random.Random(seed), range(LANGUAGE.first_word, LANGUAGE.vocab_size)
    while True:
        yield source.choices(words, k=num_tokens)
