"""Simulated targets that routers find in a registry, and clients whose prompts have prefixes in common."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

from flyserve import AsyncClient
from flyserve.core.blocks import BLOCK_TOKENS
from flyserve.core.clock import SystemClock
from flyserve.core.endpoints import Endpoint
from flyserve.core.messages import Load, Role
from flyserve.core.request import SpeculationParams
from flyserve.core.types import Mode
from orchestration.control.registry import Registry, registry_service
from router.config import RouterConfig
from router.server import create_host
from services.common.host import Host
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from services.target.servicer import host_engine
from tests.support.processes import TARGET_MODEL
from tests.support.serving import serving

PREFIX_BLOCKS, OWN_TOKENS, EXPONENT = 11, 8, 0.7
SEQUENCE_TOKENS = 192
"""KV memory of one sequence of this load."""
WORDS = range(16, 4096)
PLAIN = SpeculationParams(mode=Mode.PLAIN)


@dataclass(frozen=True)
class Traffic:
    """The deployment, and its requests.

    Attributes:
        places: Sequences that each target holds at once.
        cached: Sequences, open or cached, that the memory of each target holds.
        prefixes: Prefixes of the prompts: the k-th occurs in proportion to k ** -0.7 (Zipf's law).
        clients: Clients that send one request after the other, each at one router.
        skipped: First requests that the outcome leaves out.
    """

    policy: str = "prefix_affinity"
    routers: int = 1
    targets: int = 4
    places: int = 64
    cached: int = 6
    prefixes: int = 20
    clients: int = 1
    requests: int = 200
    skipped: int = 0
    forward_s: float = 0.002
    new_tokens: int = 4

    def prompts(self) -> Iterator[list[int]]:
        """Yield the prompts."""
        source = random.Random(0)
        prefixes = [source.choices(WORDS, k=PREFIX_BLOCKS * BLOCK_TOKENS) for _ in range(self.prefixes)]
        weights = [(rank + 1) ** -EXPONENT for rank in range(self.prefixes)]
        for prefix in source.choices(prefixes, weights, k=self.requests):
            yield prefix + source.choices(WORDS, k=OWN_TOKENS)


class Outcome(NamedTuple):
    """The share of prompt tokens from a cache, and the busiest target's tokens as a multiple of the mean."""

    hit_rate: float
    busiest: float


class Sampler:
    """Counts responses; the first `skipped` ones do not count in the outcome."""

    def __init__(self, engines: Sequence[ClockEngine], skipped: int) -> None:
        self._engines, self._left = engines, skipped
        self._before = self._loads()

    def _loads(self) -> list[Load]:
        return [engine.load() for engine in self._engines]

    def record(self) -> None:
        """Record one more response."""
        self._left -= 1
        if not self._left:
            self._before = self._loads()

    def outcome(self) -> Outcome:
        """Return the outcome of the responses that count."""
        pairs = list(zip(self._before, self._loads(), strict=True))
        reused = [after.reused_tokens - before.reused_tokens for before, after in pairs]
        computed = [after.prefill_tokens - before.prefill_tokens for before, after in pairs]
        totals = [sum(each) for each in zip(reused, computed, strict=True)]
        return Outcome(sum(reused) / sum(totals), max(totals) * len(totals) / sum(totals))


class Running(NamedTuple):
    """The engines of the targets, the registry, and the addresses of the routers."""

    traffic: Traffic
    engines: Sequence[ClockEngine]
    registry: Registry
    routers: Sequence[str]

    async def send(
        self, prompts: Iterator[list[int]], number: int, then: Callable[[], object] = lambda: None
    ) -> None:
        """Send prompts as client `number`, one after the other; call `then` after each response."""
        async with AsyncClient(self.routers[number % len(self.routers)], retries=0) as client:
            for prompt in prompts:
                await client.generate(prompt, self.traffic.new_tokens, speculation=PLAIN)
                then()


@asynccontextmanager
async def running(traffic: Traffic) -> AsyncIterator[Running]:
    """Serve the deployment until the block ends."""
    costs = SimulatedConfig(
        vocab_size=4096,
        response_tokens=(traffic.new_tokens, traffic.new_tokens),
        base_s=traffic.forward_s,
        per_token_s=0.00001,
        knee_tokens=4096,
    )
    memory = traffic.cached * SEQUENCE_TOKENS
    engines = [
        ClockEngine(SimulatedRunner(costs, Role.TARGET, traffic.places, memory), SystemClock())
        for _ in range(traffic.targets)
    ]
    registry, endpoints = Registry(), list[Endpoint]()
    async with AsyncExitStack() as stack:
        at = await stack.enter_async_context(serving(Host(registry_service(registry))))
        for number, engine in enumerate(engines):
            await engine.start()
            address = await stack.enter_async_context(serving(host_engine(engine)))
            endpoints.append(Endpoint(Role.TARGET, address, f"target-{number}"))
        registry.publish(tuple(endpoints))
        config = RouterConfig(model=TARGET_MODEL, grpc_port=0, registry=at, balancing=traffic.policy)
        routers = [
            await stack.enter_async_context(serving(await create_host(config)))
            for _ in range(traffic.routers)
        ]
        yield Running(traffic, engines, registry, routers)


async def measure(traffic: Traffic) -> Outcome:
    """Send all requests through the routers."""
    async with running(traffic) as deployment:
        prompts, sampler = traffic.prompts(), Sampler(deployment.engines, traffic.skipped)
        clients = range(traffic.clients)
        await asyncio.gather(*(deployment.send(prompts, number, sampler.record) for number in clients))
        return sampler.outcome()
