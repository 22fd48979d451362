"""Starts the demo with room for every level, and measures window after window."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import cycle
from typing import Any
from uuid import uuid4

import uvloop
from rich.console import Console

from benchmarks.deployed import deployed
from benchmarks.load.closed_loop import Ask, Chunks, run_window
from benchmarks.load.plan import SETTINGS, Level, Plan
from benchmarks.load.window import Window, cut_window
from benchmarks.prompts import demo_prompts
from flyserve import AsyncClient
from flyserve.bench.comparison import rotated
from flyserve.bench.progress import Advance, progress_bar
from flyserve.cli.up import DEMO
from orchestration.deployment.file import Deployment, load_deployment

_NUM_PROMPTS = 300
_KV_TOKENS_PER_SEQUENCE = 1024
_PAUSE_S = 0.2
"""Between windows: what was broken off ends everywhere."""


@contextmanager
def running_demo(plan: Plan, verbose: bool = False) -> Iterator[str]:
    """The address of the demo, with room for as many requests as the plan has at once.

    Raises:
        FlyServeError: It cannot be started.
    """
    with deployed(make_room(load_deployment(DEMO), plan.most_at_once), "the demo's services", verbose) as at:
        yield at


def make_room(deployment: Deployment, most_at_once: int) -> Deployment:
    """A deployment each of whose replicas holds so many sequences, and whose router admits them."""
    room = {"max_sequences": most_at_once, "kv_tokens": most_at_once * _KV_TOKENS_PER_SEQUENCE}
    router = {"max_concurrent": most_at_once, "grpc_port": 0, "http_port": None}
    assert deployment.drafter is not None
    return deployment.model_copy(
        update={
            "target": deployment.target.model_copy(update=room),
            "drafter": deployment.drafter.model_copy(update=room),
            "router": deployment.router.model_copy(update=router),
        }
    )


def run_level(address: str, level: Level, plan: Plan, console: Console) -> list[dict[str, Any]]:
    """Every window of one level as plain data, with a progress bar.

    Raises:
        FlyServeError: A request was rejected.
    """
    prompts = demo_prompts(_NUM_PROMPTS)
    label = f"{level.concurrency} at once"
    with (
        progress_bar(console, plan.windows_per_level, label) as advance,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        windows = runner.run(_measure(address, level, plan.repetitions, prompts, advance))
    return [asdict(window) for window in windows]


async def _measure(
    address: str, level: Level, repetitions: int, prompts: Sequence[Sequence[int]], advance: Advance
) -> list[Window]:
    async with AsyncClient(address, retries=0) as client:

        def ask_by(setting: str) -> Ask:
            speculation, salt = SETTINGS[setting], uuid4().hex

            def ask(prompt: Sequence[int], max_new_tokens: int) -> Chunks:
                return client.stream(prompt, max_new_tokens, speculation=speculation, cache_salt=salt)

            return ask

        return await measure_level(ask_by, level, repetitions, prompts, advance)


async def measure_level(
    ask_by: Callable[[str], Ask],
    level: Level,
    repetitions: int,
    prompts: Sequence[Sequence[int]],
    advance: Advance,
) -> list[Window]:
    """Windows of every setting by turns; the first of each is not counted.

    Args:
        ask_by: From a setting to how its requests are sent, again for each window: what servers remember of a
            prompt is of no use to the next.
        level: How many requests at once, and for how long.
        repetitions: Windows of every setting that are counted.
        prompts: At least one; in every repetition all settings begin with the same.
        advance: Called after each window.
    """
    windows = []
    for repetition in range(-1, repetitions):
        for setting in rotated(tuple(SETTINGS), repetition):
            source = cycle(rotated(prompts, repetition * level.concurrency))
            streams, begin_s, end_s = await run_window(ask_by(setting), source, level)
            if repetition >= 0:
                windows.append(cut_window(setting, level.concurrency, repetition, streams, begin_s, end_s))
            advance()
            await asyncio.sleep(_PAUSE_S)
    return windows
