"""Simulated engines for the streams of one service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from flyserve.core.clock import SystemClock
from flyserve.core.messages import Role
from services.common.endpoint_sources import ListedEndpointSource
from services.drafter.sub_drafters import SubDrafters
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner

PROMPT = [20, 21, 22, 23]


@asynccontextmanager
async def simulated(role: Role, max_sequences: int = 4, **language: Any) -> AsyncIterator[ClockEngine]:
    """Run an engine whose forwards take no time unless `language` has their costs."""
    config = SimulatedConfig(**{"base_s": 0.0, "per_token_s": 0.0, **language})
    engine = ClockEngine(SimulatedRunner(config, role, max_sequences, kv_tokens=4096), SystemClock())
    await engine.start()
    yield engine
    await engine.stop()


def helpers_at(address: str) -> SubDrafters:
    """Return the sub-drafters of a drafter, of which there is one."""
    return SubDrafters(ListedEndpointSource({Role.SUB_DRAFTER: [address]}, SystemClock()))
