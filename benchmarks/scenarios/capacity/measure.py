"""The clients of simulated deployments, and the windows that are measured."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from operator import sub

import uvloop

from benchmarks.harness.command import Context
from benchmarks.harness.load import Level, Stream, Window, asker, cut_window, run_window
from benchmarks.scenarios.capacity.hosts import Hosts
from benchmarks.scenarios.capacity.plan import AGREEMENT, LANGUAGE, SETTINGS, Deployment, Plan, Stage
from flyserve import AsyncClient
from flyserve.bench.progress import progress_bar
from flyserve.bench.statistics import mean_tau, share

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


def measure_stage(plan: Plan, context: Context, stage: Stage) -> list[Measured]:
    """Measure every deployment of a stage under every setting, all deployments at once."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure_stage(plan, context, stage))


async def _measure_stage(plan: Plan, context: Context, stage: Stage) -> list[Measured]:
    label, target, drafter = f"{stage.dilation:g} times slower", plan.target, plan.drafter
    drafting = drafter.simulated(replace(LANGUAGE, agreement=AGREEMENT))
    async with AsyncExitStack() as stack:
        running = [Hosts(stack, each, stage.dilation) for each in stage.deployments]
        for hosts in running:
            await hosts.start(target, target.simulated(LANGUAGE), drafter, drafting)
        found = list[Measured]()
        with progress_bar(context.console, len(stage.settings), label) as advance:
            for setting in stage.settings:
                measure = partial(measure_window, plan, setting, stage.dilation)
                found += await asyncio.gather(*map(measure, running))
                advance()
        return found


def shares(total: int, count: int) -> Sequence[int]:
    """Split a total into `count` parts that differ by at most one."""
    return [total // count + (index < total % count) for index in range(count)]


async def measure_window(plan: Plan, setting: str, dilation: float, hosts: Hosts) -> Measured:
    """Measure one deployment; its clients are shared evenly among its routers, and stay there."""
    settle_s, streams = plan.settle_s * dilation, hosts.deployment.streams
    level = Level(streams, settle_s, plan.measure_s * dilation, _SPREAD * settle_s)
    prompts = _prompts(f"{hosts.deployment} {setting}", plan.prompt_tokens)

    async def load(address: str, own: int) -> tuple[list[Stream], float, float]:
        async with AsyncClient(address, retries=0) as client:
            ask = asker(client, SETTINGS[setting])
            return await run_window(ask, prompts, replace(level, concurrency=own))

    async def activity() -> list[float]:
        await asyncio.sleep(level.settle_s)
        before = hosts.counters()
        await asyncio.sleep(level.measure_s)
        return list(map(sub, hosts.counters(), before))

    numbers = zip(hosts.addresses, shares(streams, len(hosts.addresses)), strict=True)
    loads = asyncio.gather(*(load(address, own) for address, own in numbers if own))
    found, (asked_s, late_s, steps_s) = await asyncio.gather(loads, activity())
    sent = [stream for own, _, _ in found for stream in own]
    return Measured(
        window=cut_window(setting, streams, 0, sent, found[0][1], found[0][2]),
        dilation=dilation,
        tau=mean_tau([stream.statistics for stream in sent if stream.statistics is not None]),
        late=share(late_s, asked_s),
        outside=1 - share(steps_s, streams * level.measure_s),
        deployment=hosts.deployment,
    )


def _prompts(seed: str, num_tokens: int) -> Iterator[Sequence[int]]:
    """Yield random prompts without end, the same ones for the same seed."""
    source, words = random.Random(seed), range(LANGUAGE.first_word, LANGUAGE.vocab_size)
    while True:
        yield source.choices(words, k=num_tokens)
