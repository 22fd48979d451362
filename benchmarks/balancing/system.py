"""Simulated targets with small caches behind a real router: one process, real sockets."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from benchmarks.serving import serving
from fly.clock import SystemClock
from fly.messages import Role
from router.config import RouterConfig
from router.server import create_host
from services.common.channel import open_channel
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from services.target.servicer import host_engine

TOKENIZER = Path(__file__).resolve().parent.parent.parent / "demo" / "models" / "target"
VOCAB_SIZE = 4096
_COSTS = SimulatedConfig(
    vocab_size=VOCAB_SIZE, response_tokens=(64, 64), base_s=0.002, per_token_s=0.00001, knee_tokens=4096
)


@dataclass(frozen=True, slots=True)
class System:
    """A channel to a running router, and the engines behind it."""

    channel: grpc.aio.Channel
    engines: Sequence[ClockEngine]


@asynccontextmanager
async def running(balancing: str, num_replicas: int, kv_tokens: int) -> AsyncIterator[System]:
    """Serves until the block is left; each replica holds `kv_tokens`, cached ones included."""
    async with AsyncExitStack() as stack:
        engines = [ClockEngine(_runner(kv_tokens), SystemClock()) for _ in range(num_replicas)]
        addresses = []
        for engine in engines:
            await engine.start()
            addresses.append(await stack.enter_async_context(serving(host_engine(engine))))
        config = RouterConfig(
            model=TOKENIZER, grpc_port=0, targets=tuple(addresses), balancing=balancing, max_concurrent=64
        )
        router = await stack.enter_async_context(serving(await create_host(config)))
        channel = await stack.enter_async_context(open_channel(router))
        yield System(channel, engines)


def _runner(kv_tokens: int) -> SimulatedRunner:
    return SimulatedRunner(_COSTS, Role.TARGET, max_sequences=64, kv_tokens=kv_tokens)
