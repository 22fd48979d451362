"""Blocks of requests to one router after the other, in an order that rotates."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

from benchmarks.summary import Interval, bootstrap
from benchmarks.telemetry.settings import OFF
from benchmarks.telemetry.system import Router
from fly.request import SpeculationParams
from fly.types import Mode
from flyserve.client import Client

_SETTLE_S = 0.6
"""For the spans of a block to leave, three times over."""

_PROMPT_TOKENS = 32
_FIRST_WORD, _LAST_WORD = 16, 1023


Blocks = dict[str, list[float]]
"""Microseconds of a router's CPU time per token, block by block, by setting."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Attributes:
        launches: Times that all processes are restarted: two processes of one program differ, too.
        repetitions: Blocks of every setting in every mode and launch.
        requests: Of one block.
        at_once: Requests in flight.
        new_tokens: Of every response.
    """

    launches: int = 6
    repetitions: int = 4
    requests: int = 16
    at_once: int = 4
    new_tokens: int = 128


@dataclass(frozen=True, slots=True)
class Cost:
    """One setting in one mode.

    Attributes:
        cpu_us: Of the router per emitted token: the median over blocks.
        ratio: To the first setting in the same repetition: the median, and its interval.
        blocks_us: Block by block.
    """

    setting: str
    mode: str
    cpu_us: float
    ratio: Interval
    blocks_us: tuple[float, ...]


def measure(routers: Mapping[str, Router], mode: str, plan: Plan, advance: Callable[[], None]) -> Blocks:
    """One launch in one mode: microseconds per token by setting; the first repetition does not count."""
    blocks: Blocks = {name: [] for name in routers}
    names = list(routers)
    for repetition in range(plan.repetitions + 1):
        turn = repetition % len(names)
        for name in names[turn:] + names[:turn]:
            cost_us = _block(routers[name], mode, plan, repetition)
            if repetition:
                blocks[name].append(cost_us)
            advance()
    return blocks


def compare(blocks: Mapping[str, Sequence[float]], mode: str) -> list[Cost]:
    """Every setting with the one that tells nothing, block by block of the same repetition.

    Args:
        blocks: Microseconds per token by setting, as many of each.
        mode: In which they were measured.
    """

    def cost(name: str) -> Cost:
        ratios = [own / base for own, base in zip(blocks[name], blocks[OFF], strict=True)]
        return Cost(name, mode, median(blocks[name]), bootstrap(ratios, median), tuple(blocks[name]))

    return [cost(name) for name in blocks]


def _block(router: Router, mode: str, plan: Plan, seed: int) -> float:
    """Microseconds of the router's CPU time per token, for the same requests under every setting."""
    words = random.Random(seed)
    prompts = [
        [words.randint(_FIRST_WORD, _LAST_WORD) for _ in range(_PROMPT_TOKENS)] for _ in range(plan.requests)
    ]
    with Client(router.address) as client:

        def generate(prompt: list[int]) -> int:
            speculation = SpeculationParams(mode=Mode(mode))
            chunks = client.stream(prompt, plan.new_tokens, speculation=speculation, cache_salt=str(seed))
            return sum(len(chunk.tokens) for chunk in chunks)

        started_s = router.cpu_s()
        with ThreadPoolExecutor(plan.at_once) as pool:
            num_tokens = sum(pool.map(generate, prompts))
        router.scrape()
        time.sleep(_SETTLE_S)
    return (router.cpu_s() - started_s) / num_tokens * 1e6
