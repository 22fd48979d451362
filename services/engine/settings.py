"""What drafter and target replicas have in common: a model, its memory, a place to listen."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from fly.messages import Role
from services.common.config import Config
from services.common.security.config import SecurityConfig
from services.common.telemetry.config import TelemetryConfig
from services.engine.config import EngineConfig
from services.engine.simulation.runner import SimulatedConfig


class ModelSettings(Config):
    """A replica that runs a model.

    Attributes:
        model: Folder of the model, or `org/name@revision` on the model hub.
        simulated: Instead of a model, the parameters of a simulated model.
        dtype: Compute type.
        max_sequences: Sequences that may be open at once.
        kv_tokens: KV cache positions for all of them.
        max_batch_tokens: Token rows of one forward; longer prefills go in chunks.
        threads: CPU threads of a forward.
        device: Where torch computes; of several GPUs that a process may use it takes the first.
        address: host:port to listen at; port 0 takes a free one.
        grace_s: How long running streams may go on when the replica is told to stop.
        security: How it protects what it serves.
        telemetry: What it tells of itself.
    """

    model: Path | None = None
    simulated: SimulatedConfig | None = None
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    max_sequences: int = Field(64, ge=1, le=65536)
    kv_tokens: int = Field(65536, ge=1)
    max_batch_tokens: int = Field(512, ge=1)
    threads: int = Field(1, ge=1, le=1024)
    device: Literal["cpu", "cuda"] = "cpu"
    address: str = "127.0.0.1:0"
    grace_s: float = Field(10.0, ge=0)
    security: SecurityConfig = SecurityConfig()
    telemetry: TelemetryConfig = TelemetryConfig()

    @model_validator(mode="after")
    def _has_one_model(self) -> Self:
        if (self.model is None) == (self.simulated is None):
            raise ValueError("give either model or simulated")
        return self

    def engine_config(self, role: Role) -> EngineConfig:
        """The same for the engine."""
        model = self.model if self.model is not None else self.simulated
        assert model is not None
        return EngineConfig(
            role=role,
            model=model,
            dtype=self.dtype,
            max_sequences=self.max_sequences,
            kv_tokens=self.kv_tokens,
            max_batch_tokens=self.max_batch_tokens,
            threads=self.threads,
            device=self.device,
        )
