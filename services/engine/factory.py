"""From a configuration to an engine; torch is imported only where a real model asks for it."""

import logging
from dataclasses import dataclass
from pathlib import Path

from fly.clock import Clock, SystemClock
from fly.messages import Role
from services.common.model_source import model_folder
from services.engine.clock_engine import ClockEngine
from services.engine.engine import Engine, ThreadEngine
from services.engine.simulated import SimulatedConfig, SimulatedRunner

logger = logging.getLogger(__name__)


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


def build_engine(config: EngineConfig, clock: Clock | None = None) -> Engine:
    """An engine, loaded but not started.

    Args:
        config: What to build.
        clock: On which a simulated model waits; the system's by default.

    Raises:
        ModelError: The model cannot be served.
    """
    if isinstance(config.model, SimulatedConfig):
        simulated = SimulatedRunner(config.model, config.role, config.max_sequences, config.kv_tokens)
        return ClockEngine(simulated, clock or SystemClock(), config.max_batch_tokens, config.max_queued)
    from services.engine.torch_runner import load_runner

    runner = load_runner(
        model_folder(config.model),
        model_id=str(config.model),
        role=config.role,
        dtype=config.dtype,
        max_sequences=config.max_sequences,
        kv_tokens=config.kv_tokens,
        threads=config.threads,
        device=config.device,
    )
    logger.info("%s: %s", config.model, runner.measure_bandwidth().describe())
    return ThreadEngine(runner, config.max_batch_tokens, config.max_queued)
