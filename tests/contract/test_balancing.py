"""Prefix affinity hits the replicas' caches, over real sockets, measured by the engines' own counters.

One request is sent after the other, so hit rates do not depend on the machine's speed: with several at once,
the policy leaves a replica of a prefix that happens to be busy.
"""

import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import NamedTuple

from flyserve import AsyncClient
from flyserve.core.blocks import BLOCK_TOKENS
from flyserve.core.clock import SystemClock
from flyserve.core.messages import Role
from flyserve.core.request import SpeculationParams
from flyserve.core.types import Mode
from router.config import RouterConfig
from router.server import create_host
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from services.target.servicer import host_engine
from tests.support.processes import TARGET_MODEL
from tests.support.serving import serving

REPLICAS, REQUESTS = 4, 200
PREFIXES, PREFIX_BLOCKS, OWN_TOKENS, NEW_TOKENS, EXPONENT = 20, 11, 8, 4, 0.7
KV_TOKENS = 6 * 192
"""Room for six sequences of this load, open or cached."""
WORDS = range(16, 4096)
COSTS = SimulatedConfig(
    vocab_size=4096, response_tokens=(64, 64), base_s=0.002, per_token_s=0.00001, knee_tokens=4096
)


class Outcome(NamedTuple):
    """The share of prompt tokens from a cache, and the busiest replica's tokens as a multiple of the mean."""

    hit_rate: float
    busiest: float


def prompts() -> Iterator[list[int]]:
    """Yield prompts with shared prefixes: the k-th occurs in proportion to k ** -0.7 (Zipf's law)."""
    source = random.Random(0)
    prefixes = [source.choices(WORDS, k=PREFIX_BLOCKS * BLOCK_TOKENS) for _ in range(PREFIXES)]
    weights = [(rank + 1) ** -EXPONENT for rank in range(PREFIXES)]
    for prefix in source.choices(prefixes, weights, k=REQUESTS):
        yield prefix + source.choices(WORDS, k=OWN_TOKENS)


async def measure(policy: str) -> Outcome:
    """Send all prompts through a router before four targets."""
    engines = [
        ClockEngine(SimulatedRunner(COSTS, Role.TARGET, 64, KV_TOKENS), SystemClock())
        for _ in range(REPLICAS)
    ]
    async with AsyncExitStack() as stack:
        targets = list[str]()
        for engine in engines:
            await engine.start()
            targets.append(await stack.enter_async_context(serving(host_engine(engine))))
        config = RouterConfig(model=TARGET_MODEL, grpc_port=0, targets=tuple(targets), balancing=policy)
        address = await stack.enter_async_context(serving(await create_host(config)))
        client = await stack.enter_async_context(AsyncClient(address))
        plain = SpeculationParams(mode=Mode.PLAIN)
        for prompt in prompts():
            await client.generate(prompt, NEW_TOKENS, speculation=plain)
        loads = [engine.load() for engine in engines]
    totals = [load.reused_tokens + load.prefill_tokens for load in loads]
    hit_rate = sum(load.reused_tokens for load in loads) / sum(totals)
    return Outcome(hit_rate, max(totals) * len(totals) / sum(totals))


async def test_affinity_hits_far_more_often_than_round_robin_and_spreads_the_work() -> None:
    """The rate is 2.0 to 2.3 times as high: the ports decide which prefixes share a replica."""
    affinity, in_turn = await measure("prefix_affinity"), await measure("round_robin")
    assert affinity.hit_rate >= 1.75 * in_turn.hit_rate > 0
    assert affinity.busiest <= 1.5
