"""From a configuration to an engine; torch is imported only where a real model asks for it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fly.clock import Clock, SystemClock
from fly.messages import Role
from services.common.model_source import model_folder
from services.engine.engine import Engine, ThreadEngine
from services.engine.sharding.settings import Sharding
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner

if TYPE_CHECKING:
    from services.engine.forward.torch_runner import TorchRunner

logger = logging.getLogger(__name__)

StartFollowers = Callable[[int], None]
"""Has every follower of a shared model join the group whose rendezvous is at this port; does not wait."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine is made of.

    Attributes:
        role: Tier of the service.
        model: Folder of a model or its hub id, or the parameters of a simulated one.
        dtype: Compute type, `float32` or `bfloat16`.
        max_sequences: Sequences open at once.
        kv_tokens: KV positions in all.
        max_batch_tokens: Token rows per forward; more go in chunks.
        max_queued: Sequences that may wait for a place.
        threads: CPU threads of a forward.
        device: Where torch computes.
        sharding: How several processes share the model; None where it is whole in this one.
    """

    role: Role
    model: Path | SimulatedConfig
    dtype: str = "bfloat16"
    max_sequences: int = 64
    kv_tokens: int = 65536
    max_batch_tokens: int = 512
    max_queued: int = 64
    threads: int = 1
    device: str = "cpu"
    sharding: Sharding | None = None


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
        return ThreadEngine(leader, config.max_batch_tokens, config.max_queued, upkeep=leader)
    runner = load(config)
    logger.info("%s: %s", config.model, runner.measure_bandwidth().describe())
    return ThreadEngine(runner, config.max_batch_tokens, config.max_queued)


def load(
    config: EngineConfig, shards: int = 1, when_loaded: Callable[[], None] = lambda: None
) -> "TorchRunner":
    """The runner of a real model, or of this process's part of it.

    Raises:
        ModelError: The model cannot be served.
    """
    from services.engine.forward.torch_runner import load_runner

    assert not isinstance(config.model, SimulatedConfig)
    return load_runner(
        model_folder(config.model),
        model_id=str(config.model),
        role=config.role,
        dtype=config.dtype,
        max_sequences=config.max_sequences,
        kv_tokens=config.kv_tokens,
        threads=config.threads,
        device=config.device,
        shards=shards,
        when_loaded=when_loaded,
    )
