"""Deployments side by side: closed-loop clients, and what the processes did meanwhile."""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial, reduce
from operator import add

import psutil
import uvloop

from benchmarks.harness.load import Ask, Chunks, Level, cut_window, run_window, slices
from benchmarks.scenarios.simulate.figures import SLICES, MachineUse, Measured
from benchmarks.scenarios.simulate.pace import Sample, between
from benchmarks.scenarios.simulate.plan import LANGUAGE, SETTINGS, Plan, Stage
from benchmarks.scenarios.simulate.system import Running, Worker, running
from flyserve import AsyncClient
from flyserve.bench.progress import Advance
from flyserve.bench.statistics import mean_tau

_SPREAD = 0.6
"""Share of the settling time in which the clients start."""


def measure_stage(plan: Plan, stage: Stage, advance: Advance) -> list[Measured]:
    """Measure every deployment of a stage under every setting; call `advance` after each setting.

    Raises:
        FlyServeError: A process could not be started, or a request failed.
    """
    with ExitStack() as stack, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        systems = [
            stack.enter_context(running(deployment, plan.models, stage.dilation))
            for deployment in stage.deployments
        ]
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
    prompts = _prompts(f"{deployment} {setting}", plan.prompt_tokens)
    async with AsyncExitStack() as held:
        clients = [
            await held.enter_async_context(AsyncClient(address, retries=0)) for address in system.addresses
        ]
        streams, begin_s, end_s = await run_window(_ask(clients, setting), prompts, level)
    return partial(
        Measured,
        deployment=deployment,
        models=plan.models,
        setting=setting,
        dilation=dilation,
        window=cut_window(setting, deployment.streams, 0, streams, begin_s, end_s),
        slices=slices(streams, begin_s, end_s, SLICES),
        tau=mean_tau([stream.statistics for stream in streams if stream.statistics is not None]),
        services=_activity(system.services, begin_s, end_s),
        routers=_activity(system.routers, begin_s, end_s),
    )


async def _watch_machine(plan: Plan, stage: Stage) -> MachineUse:
    """Return the use of the machine during the window."""
    await asyncio.sleep(plan.settle_s * stage.dilation)
    psutil.cpu_percent()
    clients_s = time.process_time()
    await asyncio.sleep(plan.measure_s * stage.dilation)
    return MachineUse(psutil.cpu_percent() / 100, time.process_time() - clients_s)


def _activity(workers: Sequence[Worker], begin_s: float, end_s: float) -> Sample:
    return reduce(add, (between(worker.samples(), begin_s, end_s) for worker in workers))


def _ask(clients: Sequence[AsyncClient], setting: str) -> Ask:
    """Return a function that sends requests to one router after the other."""
    turns, way = itertools.cycle(clients), SETTINGS[setting]

    def ask(prompt: Sequence[int], max_new_tokens: int) -> Chunks:
        return next(turns).stream(prompt, max_new_tokens, speculation=way)

    return ask


def _prompts(seed: str, num_tokens: int) -> Iterator[Sequence[int]]:
    source, words = random.Random(seed), range(LANGUAGE.first_word, LANGUAGE.vocab_size)
    while True:
        yield source.choices(words, k=num_tokens)
