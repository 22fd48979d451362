"""Several hosts on one dilated clock, in an event loop of their own; runs in a worker process."""

import asyncio
import threading
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import uvloop
from prometheus_client import CollectorRegistry

from benchmarks.harness.system import serving
from fly.clock import SystemClock
from fly.messages import Role
from router.config import RouterConfig
from router.server import create_host
from services.common.host import Host
from services.common.telemetry.process import Telemetry
from services.drafter.ahead import DraftingLimits
from services.drafter.servicer import host_engine as host_drafter
from services.drafter.sub_drafters import SubDrafters
from services.engine.config import ModelSection
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from services.target.servicer import host_engine as host_target

_STEPS = "flyserve_step_seconds_sum"
_MAX_BATCH_TOKENS = 1024
"""Token rows of one forward; a chunk of a prefill has at most half as many."""
_NEVER_AHEAD = DraftingLimits(ahead_sequences=0)


@dataclass(frozen=True, slots=True)
class Tier:
    """Replicas of one tier, all alike: `number` of them, each with its own limits."""

    role: Role
    model: SimulatedConfig
    number: int
    max_sequences: int
    kv_tokens: int


class Sample(NamedTuple):
    """A process's counters at one moment.

    Attributes:
        at_s: Time on the machine's monotonic clock.
        asked_s: Cost of its forwards, in dilated time.
        late_s: Time that they took beyond their cost, in dilated time.
        steps_s: Real time in its services, over all answered steps.
    """

    at_s: float
    asked_s: float
    late_s: float
    steps_s: float


class PacedClock(SystemClock):
    """A dilated clock that measures how late its sleepers woke.

    Attributes:
        asked_s: Requested sleep, on this clock.
        late_s: Total delay with which the sleepers woke.
    """

    def __init__(self, dilation: float) -> None:
        super().__init__(dilation)
        self.asked_s = self.late_s = 0.0

    async def sleep(self, seconds: float) -> None:
        started = self.now()
        await super().sleep(seconds)
        self.asked_s += seconds
        self.late_s += self.now() - started - seconds


class Hosts:
    """Replicas or routers; the thread that calls the methods is not that of the event loop."""

    def __init__(self, dilation: float) -> None:
        self._clock = PacedClock(dilation)
        self._registries: list[tuple[Role, CollectorRegistry]] = []
        self._stack, self._loop = AsyncExitStack(), uvloop.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def start_replicas(self, tiers: tuple[Tier, ...]) -> list[list[str]]:
        """Start the replicas of every tier; return their addresses, tier by tier."""
        return [[self._run(self._start_replica(tier)) for _ in range(tier.number)] for tier in tiers]

    def start_routers(self, config: RouterConfig, number: int) -> list[str]:
        """Start routers, and return their addresses."""
        return [self._run(self._start_router(config)) for _ in range(number)]

    def sample(self) -> Sample:
        """Return the counters of this process."""
        steps = (each.get_sample_value(_STEPS, {"role": role.value}) for role, each in self._registries)
        clock = self._clock
        return Sample(time.monotonic(), clock.asked_s, clock.late_s, sum(filter(None, steps)))

    def stop(self) -> None:
        """Stop all hosts; their calls end at once."""
        self._run(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start_replica(self, tier: Tier) -> str:
        limits = ModelSection(max_batch_tokens=_MAX_BATCH_TOKENS, max_queued=tier.max_sequences)
        runner = SimulatedRunner(tier.model, tier.role, tier.max_sequences, tier.kv_tokens)
        engine, telemetry = ClockEngine(runner, self._clock, limits), Telemetry()
        await engine.start()
        telemetry.registry = CollectorRegistry()
        self._registries.append((tier.role, telemetry.registry))
        if tier.role is Role.TARGET:
            return await self._serve(host_target(engine, telemetry=telemetry))
        return await self._serve(host_drafter(engine, SubDrafters(None), _NEVER_AHEAD, telemetry))

    async def _start_router(self, config: RouterConfig) -> str:
        return await self._serve(await create_host(config, self._clock))

    async def _serve(self, host: Host) -> str:
        return await self._stack.enter_async_context(serving(host))
