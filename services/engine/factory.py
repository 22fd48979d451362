"""From a configuration to an engine; torch is imported only where a real model asks for it."""

import logging

from fly.clock import Clock, SystemClock
from services.engine.config import EngineConfig, StartFollowers
from services.engine.engine import Engine
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.language import SimulatedConfig
from services.engine.simulation.runner import SimulatedRunner
from services.engine.thread_engine import ThreadEngine

logger = logging.getLogger(__name__)


def build_engine(
    config: EngineConfig, clock: Clock | None = None, start_followers: StartFollowers | None = None
) -> Engine:
    """An engine, loaded but not started.

    Args:
        config: What to build.
        clock: On which a simulated model waits; the system's by default.
        start_followers: Of a shared model, which this process leads.

    Raises:
        ModelError: The model cannot be served.
    """
    if isinstance(config.model, SimulatedConfig):
        simulated = SimulatedRunner(config.model, config.role, config.max_sequences, config.kv_tokens)
        return ClockEngine(simulated, clock or SystemClock(), config.max_batch_tokens, config.max_queued)
    if config.sharding is not None:
        assert start_followers is not None, "a shared model has followers"
        from services.engine.sharding.leader import lead

        leader = lead(config, start_followers)
        return ThreadEngine(leader, config.max_batch_tokens, config.max_queued, keepalive=leader)
    from services.engine.runners import load

    runner = load(config)
    logger.info("%s: %s", config.model, runner.measure_bandwidth().describe())
    return ThreadEngine(runner, config.max_batch_tokens, config.max_queued)
