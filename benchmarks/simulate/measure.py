"""Deployments side by side: clients that ask again and again, and what the processes did meanwhile."""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial, reduce
from operator import add

import uvloop

from benchmarks.load.closed_loop import Ask, Chunks, run_window
from benchmarks.load.plan import Level
from benchmarks.load.window import Stream, cut_window
from benchmarks.simulate.figures import SLICES, MachineUse, Measured
from benchmarks.simulate.pace import Sample, between
from benchmarks.simulate.plan import LANGUAGE, SETTINGS, Plan, Stage
from benchmarks.simulate.system import Running, Worker, running
from benchmarks.summary import share
from flyserve import AsyncClient
from flyserve.bench.progress import Advance

_SPREAD = 0.6
"""Part of the time before anything is counted in which the clients begin."""


def measure_stage(plan: Plan, stage: Stage, advance: Advance) -> list[Measured]:
    """Every deployment of a stage under every setting; `advance` is called after each setting.

    Raises:
        FlyServeError: Something could not be started, or a request failed.
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
    """All at once, each by clients of its own."""
    windows = (_measure(plan, stage, system, setting) for system in systems)
    watch = asyncio.create_task(_watch_machine(plan, stage))
    found = await asyncio.gather(*windows)
    machine = await watch
    return [make(machine) for make in found]


async def _measure(
    plan: Plan, stage: Stage, system: Running, setting: str
) -> Callable[[MachineUse], Measured]:
    """What lacks nothing but what the whole machine did."""
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
        deployment,
        setting,
        dilation,
        cut_window(setting, deployment.streams, 0, streams, begin_s, end_s),
        _slices(streams, begin_s, end_s),
        _tau(streams),
        _did(system.services, begin_s, end_s),
        _did(system.routers, begin_s, end_s),
    )


async def _watch_machine(plan: Plan, stage: Stage) -> MachineUse:
    """While windows are measured."""
    import psutil

    await asyncio.sleep(plan.settle_s * stage.dilation)
    psutil.cpu_percent()
    clients_s = time.process_time()
    await asyncio.sleep(plan.measure_s * stage.dilation)
    return MachineUse(psutil.cpu_percent() / 100, time.process_time() - clients_s)


def _did(workers: Sequence[Worker], begin_s: float, end_s: float) -> Sample:
    return reduce(add, (between(worker.samples(), begin_s, end_s) for worker in workers))


def _ask(clients: Sequence[AsyncClient], setting: str) -> Ask:
    """Asks one router after the other."""
    turns, speculation = itertools.cycle(clients), SETTINGS[setting]

    def ask(prompt: Sequence[int], max_new_tokens: int) -> Chunks:
        return next(turns).stream(prompt, max_new_tokens, speculation=speculation)

    return ask


def _prompts(seed: str, num_tokens: int) -> Iterator[Sequence[int]]:
    source, words = random.Random(seed), range(LANGUAGE.first_word, LANGUAGE.vocab_size)
    while True:
        yield source.choices(words, k=num_tokens)


def _tau(streams: Sequence[Stream]) -> float:
    """Of the responses that have ended."""
    ended = [stream.statistics for stream in streams if stream.statistics is not None]
    return share(sum(s.tau * s.draft_rounds for s in ended), sum(s.draft_rounds for s in ended))


def _slices(streams: Sequence[Stream], begin_s: float, end_s: float) -> tuple[int, ...]:
    """Tokens that came in each of equal parts of a window."""
    counts, length_s = [0] * SLICES, (end_s - begin_s) / SLICES
    for time_s, count in itertools.chain.from_iterable(stream.arrivals for stream in streams):
        if begin_s <= time_s < end_s:
            counts[min(SLICES - 1, int((time_s - begin_s) / length_s))] += count
    return tuple(counts)
