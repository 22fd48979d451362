"""What an engine is made of."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fly.messages import Role
from services.engine.sharding.settings import Sharding
from services.engine.simulation.language import SimulatedConfig

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
