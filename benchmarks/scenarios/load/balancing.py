"""Balancing policies: prefix-cache hit rate and evenness, with simulated replicas behind a real router."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from benchmarks.harness.client import PLAIN
from benchmarks.harness.command import BasePlan, Context, Quick
from benchmarks.harness.plot import bar_chart
from benchmarks.harness.report import Report, Table, times
from benchmarks.harness.system import DEMO_MODELS, serving
from fly.blocks import BLOCK_TOKENS
from fly.clock import SystemClock
from fly.messages import Role
from flyserve import AsyncClient
from flyserve.bench.progress import Advance, progress_bar
from router.config import RouterConfig
from router.policies import POLICIES
from router.server import create_host
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from services.target.servicer import host_engine

REPLICAS, CACHED = 4, 6
_FIRST_WORD, _VOCAB_SIZE = 16, 4096
_SEQUENCE_TOKENS = 192
"""KV tokens that a replica reserves for one sequence of this load, open or cached."""
_COSTS = SimulatedConfig(
    vocab_size=_VOCAB_SIZE, response_tokens=(64, 64), base_s=0.002, per_token_s=0.00001, knee_tokens=4096
)


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The requests of each policy.

    Attributes:
        requests: Number of requests under each exponent.
        exponents: Exponents of Zipf's law: the k-th prefix occurs in proportion to k ** -exponent.
        clients: Clients; each sends its next request as soon as its last one has ended.
        prefixes: Number of different prefixes.
        prefix_blocks: Blocks of one prefix.
        own_tokens: Tokens of each request after its prefix.
        new_tokens: Tokens of each response; with the request's own tokens they fill no block.
        seed: Seed of the prefixes and their order.
    """

    requests: Annotated[int, Field(ge=1), Quick(40)] = 400
    exponents: tuple[float, ...] = (0.5, 0.7, 1.0)
    clients: int = 4
    prefixes: int = 20
    prefix_blocks: int = 11
    own_tokens: int = 8
    new_tokens: int = 4
    seed: int = 0

    def prompts(self, exponent: float) -> Iterator[list[int]]:
        """Yield all prompts in order."""
        source = random.Random(self.seed)
        prefixes = [_words(source, self.prefix_blocks * BLOCK_TOKENS) for _ in range(self.prefixes)]
        weights = [(rank + 1) ** -exponent for rank in range(self.prefixes)]
        for prefix in source.choices(prefixes, weights, k=self.requests):
            yield prefix + _words(source, self.own_tokens)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy under one exponent, by the engines' own counters.

    Attributes:
        hit_rate: Share of prompt tokens taken from a cache.
        busiest: Prompt tokens of the busiest replica as a multiple of the mean.
    """

    policy: str
    exponent: float
    hit_rate: float
    busiest: float


def run(plan: Plan, context: Context) -> Report:
    """Measure every policy under every exponent, each with empty caches."""
    total = plan.requests * len(POLICIES) * len(plan.exponents)
    with progress_bar(context.console, total) as advance:
        outcomes = [
            asyncio.run(measure(policy, exponent, plan, advance))
            for policy in POLICIES
            for exponent in plan.exponents
        ]
    return make_report(plan, outcomes)


async def measure(policy: str, exponent: float, plan: Plan, advance: Advance = lambda: None) -> Outcome:
    """Measure one policy; each replica has KV memory for `CACHED` sequences, open or cached."""
    async with _running(policy) as (client, engines):
        prompts = plan.prompts(exponent)

        async def send() -> None:
            for prompt in prompts:
                await client.generate(prompt, plan.new_tokens, speculation=PLAIN)
                advance()

        await asyncio.gather(*(send() for _ in range(plan.clients)))
        loads = [engine.load() for engine in engines]
    totals = [load.reused_tokens + load.prefill_tokens for load in loads]
    return Outcome(
        policy=policy,
        exponent=exponent,
        hit_rate=sum(load.reused_tokens for load in loads) / sum(totals),
        busiest=max(totals) * len(totals) / sum(totals),
    )


@asynccontextmanager
async def _running(policy: str) -> AsyncIterator[tuple[AsyncClient, Sequence[ClockEngine]]]:
    """Yield a client of a router, and the engines behind it: one process, real sockets."""
    async with AsyncExitStack() as stack:
        engines = [ClockEngine(_runner(), SystemClock()) for _ in range(REPLICAS)]
        addresses = []
        for engine in engines:
            await engine.start()
            addresses.append(await stack.enter_async_context(serving(host_engine(engine))))
        config = RouterConfig(
            model=DEMO_MODELS / "target",
            grpc_port=0,
            targets=tuple(addresses),
            balancing=policy,
            max_concurrent=64,
        )
        router = await stack.enter_async_context(serving(await create_host(config)))
        yield await stack.enter_async_context(AsyncClient(router)), engines


def make_report(plan: Plan, outcomes: Sequence[Outcome]) -> Report:
    """Return the report."""
    heads = ("policy", *(f"exponent {exponent:g}" for exponent in plan.exponents))
    cells = {
        f"`{policy}`": [f"{o.hit_rate:.1%}, {times(o.busiest)}" for o in outcomes if o.policy == policy]
        for policy in dict.fromkeys(outcome.policy for outcome in outcomes)
    }
    rows = tuple((policy, *row) for policy, row in cells.items())
    bars = {f"{each.policy}, exponent {each.exponent:g}": 100 * each.hit_rate for each in outcomes}
    return Report("load-balancing", None, plan, outcomes=outcomes).fill(
        replicas=REPLICAS,
        cached=CACHED,
        policies=Table("hit rate, busiest replica / mean", heads, rows),
        hit_rates=bar_chart("Prefix-cache hit rate", "% of prompt tokens", bars),
    )


def _runner() -> SimulatedRunner:
    return SimulatedRunner(_COSTS, Role.TARGET, max_sequences=64, kv_tokens=CACHED * _SEQUENCE_TOKENS)


def _words(source: random.Random, count: int) -> list[int]:
    return [source.randrange(_FIRST_WORD, _VOCAB_SIZE) for _ in range(count)]
