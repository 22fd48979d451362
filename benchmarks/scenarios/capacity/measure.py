"""The processes of simulated deployments on one dilated clock, their clients, and the windows of these."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from operator import sub

import uvloop

from benchmarks.harness.command import Context
from benchmarks.harness.load import Level, Stream, Window, asker, cut_window, run_window
from benchmarks.harness.system import DEMO_MODELS
from benchmarks.harness.worker import Worker, worker
from benchmarks.scenarios.capacity.hosts import Hosts, Sample, Tier
from benchmarks.scenarios.capacity.plan import AGREEMENT, LANGUAGE, SETTINGS, Deployment, Plan, Stage
from fly.messages import Role
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
    """

    window: Window
    dilation: float
    tau: float
    late: float
    outside: float
    deployment: Deployment

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all clients per simulated second."""
        return self.window.tokens_per_s * self.dilation


@dataclass(frozen=True, slots=True)
class Running:
    """A running deployment: processes of its targets and drafters, and the addresses of its routers."""

    deployment: Deployment
    services: tuple[Worker, ...]
    addresses: tuple[str, ...]


def measure_stage(plan: Plan, context: Context, stage: Stage) -> list[Measured]:
    """Measure every deployment of a stage under every setting, all deployments at once."""
    with (
        ExitStack() as stack,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        progress_bar(context.console, len(stage.settings), f"{stage.dilation:g} times slower") as advance,
    ):
        running = [_start(stack, plan, each, stage.dilation) for each in stage.deployments]

        async def measure_all(setting: str) -> list[Measured]:
            measure = partial(measure_window, plan, setting, stage.dilation)
            return list(await asyncio.gather(*map(measure, running)))

        found = list[Measured]()
        for setting in stage.settings:
            found += runner.run(measure_all(setting))
            advance()
        return found


def _start(stack: ExitStack, plan: Plan, deployment: Deployment, dilation: float) -> Running:
    """Start all processes of a deployment; they run until the stack unwinds."""
    count = -(-deployment.targets // _TARGETS_PER_PROCESS)
    services, routers = ([_hosts(stack, dilation) for _ in range(count)] for _ in range(2))
    targets, drafters, addresses = list[str](), list[str](), list[str]()
    numbers = zip(shares(deployment.targets, count), shares(deployment.drafters, count), strict=True)
    for service, own in zip(services, numbers, strict=True):
        found = service.ask("start_replicas", _tiers(plan, deployment.streams, *own))
        targets += found[0]
        drafters += found[1]
    config = _router_config(deployment.streams, targets, drafters, dilation)
    for router, number in zip(routers, shares(deployment.routers, count), strict=True):
        addresses += router.ask("start_routers", config, number)
    return Running(deployment, tuple(services), tuple(addresses))


def _hosts(stack: ExitStack, dilation: float) -> Worker:
    made = stack.enter_context(worker(Hosts, dilation))
    stack.callback(made.ask, "stop")
    return made


def _tiers(plan: Plan, streams: int, targets: int, drafters: int) -> tuple[Tier, Tier]:
    """Return the tiers of targets and drafters; each replica has room for all streams."""
    target, drafter = plan.target, plan.drafter
    drafting = drafter.simulated(replace(LANGUAGE, agreement=AGREEMENT))
    return (
        Tier(Role.TARGET, target.simulated(LANGUAGE), targets, streams, target.kv_tokens),
        Tier(Role.DRAFTER, drafting, drafters, streams, drafter.kv_tokens),
    )


def _router_config(
    streams: int, targets: Sequence[str], drafters: Sequence[str], dilation: float
) -> RouterConfig:
    """Return the configuration of a router on a dilated clock, for this number of concurrent requests."""
    return RouterConfig(
        model=DEMO_MODELS / "target",
        grpc_port=0,
        targets=tuple(targets),
        drafters=tuple(drafters),
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


async def measure_window(plan: Plan, setting: str, dilation: float, running: Running) -> Measured:
    """Measure one deployment; its clients are shared evenly among its routers, and stay there."""
    settle_s, streams = plan.settle_s * dilation, running.deployment.streams
    level = Level(streams, settle_s, plan.measure_s * dilation, _SPREAD * settle_s)
    prompts = _prompts(f"{running.deployment} {setting}", plan.prompt_tokens)

    async def load(address: str, own: int) -> tuple[list[Stream], float, float]:
        async with AsyncClient(address, retries=0) as client:
            return await run_window(
                asker(client, SETTINGS[setting]), prompts, replace(level, concurrency=own)
            )

    numbers = zip(running.addresses, shares(streams, len(running.addresses)), strict=True)
    loads = asyncio.gather(*(load(address, own) for address, own in numbers if own))
    found, spent = await asyncio.gather(loads, _activity(running.services, level))
    sent = [stream for own, _, _ in found for stream in own]
    return Measured(
        window=cut_window(setting, streams, 0, sent, found[0][1], found[0][2]),
        dilation=dilation,
        tau=mean_tau([stream.statistics for stream in sent if stream.statistics is not None]),
        late=share(spent.late_s, spent.asked_s),
        outside=1 - share(spent.steps_s, streams * spent.at_s),
        deployment=running.deployment,
    )


async def _activity(workers: Sequence[Worker], level: Level) -> Sample:
    """Return the activity of all processes in the window of a level that begins now; `at_s` is its length."""

    async def samples() -> list[Sample]:
        return list(await asyncio.gather(*(asyncio.wrap_future(each.submit("sample")) for each in workers)))

    await asyncio.sleep(level.settle_s)
    before = await samples()
    await asyncio.sleep(level.measure_s)
    grown = [list(map(sub, after, earlier)) for after, earlier in zip(await samples(), before, strict=True)]
    length_s, *totals = map(sum, zip(*grown, strict=True))
    return Sample(length_s / len(workers), *totals)


def _prompts(seed: str, num_tokens: int) -> Iterator[Sequence[int]]:
    """Yield random prompts without end, the same ones for the same seed."""
    source, words = random.Random(seed), range(LANGUAGE.first_word, LANGUAGE.vocab_size)
    while True:
        yield source.choices(words, k=num_tokens)
