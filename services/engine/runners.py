"""From a configuration to the runner of a real model."""

from collections.abc import Callable

from services.common.model_source import model_folder
from services.engine.config import EngineConfig
from services.engine.forward.torch_runner import TorchRunner, load_runner
from services.engine.simulation.language import SimulatedConfig


def load(
    config: EngineConfig, shards: int = 1, when_loaded: Callable[[], None] = lambda: None
) -> TorchRunner:
    """The runner of a real model, or of this process's part of it.

    Raises:
        ModelError: The model cannot be served.
    """
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
