"""Configuration of an engine: the keys of a model that a replica runs."""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema

from flyserve.core.messages import VERIFIED_TOKENS, Role
from services.common.config import AutoSwitch, Config
from services.common.machine.machine import usable_cores
from services.common.model_source import ModelPath, file_fault
from services.common.sections import ENGINE
from services.engine.simulation.language import SimulatedConfig

StartFollowers = Callable[[int], None]
"""Make every follower of a shared model join the group whose rendezvous is at this port; does not wait."""

HEARTBEATS_PER_TIMEOUT = 4
_LONGEST_HEARTBEAT_S = 1.0

PREFILL_TOKENS = 512
"""Token rows of a forward on a CPU, and those for prefills on a GPU."""
_MOST_BATCH_TOKENS = 8192
MOST_THREADS = 1024


AUTO: Literal["auto"] = "auto"
"""Value of a number that the machine decides: `kv_tokens`, `threads`, `gpus`."""


class OrAuto:
    """Annotation of a key that is a number within limits, or `auto`."""

    def __init__(self, least: int, most: int | None = None, is_whole: bool = True) -> None:
        self._limits, self._is_whole = (least, most), is_whole

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        least, most = self._limits
        number = core_schema.int_schema if self._is_whole else core_schema.float_schema
        kind = "an integer" if self._is_whole else "a number"
        limit = f"of at least {least}" if most is None else f"from {least} to {most}"
        return core_schema.union_schema(
            [number(ge=least, le=most), core_schema.literal_schema([AUTO])],
            custom_error_type="number_or_auto",
            custom_error_message=f"must be {kind} {limit}, or {AUTO}",
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        least, most = self._limits
        bounds = {"minimum": least} if most is None else {"minimum": least, "maximum": most}
        kind = "integer" if self._is_whole else "number"
        return {"type": [kind, "string"], **bounds, "pattern": f"^{AUTO}$"}


class Dtype(StrEnum):
    """Compute type of a model."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def is_widened(dtype: Dtype, shards: int, has_matrix_units: bool) -> bool:
    """Return True if a CPU computes in float32, with weights of `dtype`: rows, and KV memory.

    Without units for matrices that is as fast for few rows. A sharded model keeps the linears of
    transformers, whose results have its own type.
    """
    return dtype is not Dtype.FLOAT32 and shards == 1 and not has_matrix_units


class Quantization(StrEnum):
    """Numbers that weights are stored and multiplied in."""

    NONE = "none"
    INT8 = "int8"


class Places(Config):
    """Number of sequences of a replica."""

    max_sequences: int = Field(64, ge=1, le=65_536)
    """Sequences that one replica holds at once."""


class ModelSection(Places):
    """Size and speed of a replica that runs a model, on any engine."""

    dtype: Dtype = Dtype.BFLOAT16
    """Compute type."""

    max_queued: int = Field(64, ge=0)
    """New sequences that may wait for a place or for KV memory in one replica; further ones are rejected."""

    max_batch_tokens: int = Field(PREFILL_TOKENS, ge=1)
    """Token rows of one forward; longer prefills are processed in chunks. The default becomes larger on a
    GPU, where rows cost little."""

    threads: Annotated[int | Literal["auto"], OrAuto(1, MOST_THREADS)] = 1
    """CPU threads of a forward, in each process of a replica. `auto` takes the fastest number up to
    `max_threads`, measured at the start. On a GPU, on vLLM and with several shards it takes `max_threads`."""

    max_threads: int | None = Field(None, ge=1, le=MOST_THREADS)
    """Most threads that `threads: auto` takes. null: with `flyserve up` the tier's share of the machine's
    cores; on a cluster all cores that the process may use, divided by the shards."""

    @property
    def num_threads(self) -> int:
        """CPU threads of a forward in this process, at most; `auto` is resolved on its machine."""
        if self.threads != AUTO:
            return self.threads
        return self.max_threads or max(1, min(usable_cores() // getattr(self, "shards", 1), MOST_THREADS))

    @property
    def batch_tokens(self) -> int:
        """Token rows of one forward."""
        return self.max_batch_tokens


class BuiltinSection(ModelSection):
    """Keys of the builtin engine."""

    engine: Literal["builtin"] = "builtin"
    """Engine that runs the model: `builtin`, or one that needs the extra of its name: `vllm`, or `llamacpp`
    for a GGUF file."""

    quantization: Quantization = Quantization.NONE
    """`int8` converts weights and rows to eight bits: less memory and up to several times the speed on a CPU,
    for a small loss of accuracy; only on CPUs, without shards. vLLM has its own in `engine_args`."""

    row_invariant: AutoSwitch = "auto"
    """Gives a position the same bits whatever it is computed with, so that `exact` and `plain` agree token
    for token in every `dtype`: `auto` where a check at load proves it, `on` refuses a model or device where
    it fails, `off` takes the fastest kernels."""

    max_model_len: int | None = Field(None, ge=1)
    """Longest sequence, in tokens; null: as long as the model allows. vLLM: an argument of `engine_args`."""

    kv_tokens: Annotated[int | Literal["auto"], OrAuto(1)] = 65_536
    """KV cache positions of one replica, for all its sequences. `auto`, for processes that have whole GPUs
    to themselves: 85 % of the memory that the weights and the largest forward leave free. On CPUs
    `flyserve up` and `flyserve serve` lower the default to what fits beside the weights and a forward.
    `llamacpp`: a quarter of the memory that the weights leave, at most 16,384 or `max_model_len`; that is
    its default. vLLM sizes its own memory."""


class DeterministicSection(ModelSection):
    """Keys of the engines in which a position may depend on what is computed with it."""

    deterministic: bool = False
    """Gives a position the same bits whatever it is computed with, so that `exact` and `plain` agree token
    for token. A check at load must find that, else the model is refused. vLLM: its batch-invariant mode, only
    on GPUs; steps are slower. `llamacpp`: prompts are slower, and KV memory is needed twice at times."""


class VllmSection(DeterministicSection):
    """Keys of vLLM."""

    engine: Literal["vllm"] = "vllm"
    """Engine that runs the model: `builtin`, or one that needs the extra of its name: `vllm`, or `llamacpp`
    for a GGUF file."""

    engine_args: dict[str, Any] = Field({})
    """Arguments for vLLM under its own names, such as `{quantization: fp8, max_model_len: 8192}`. They
    override what follows from the other keys."""

    @property
    def num_processes(self) -> int:
        """Processes, each with a GPU of its own or none, that compute one replica: shards by stages."""
        stages = self.engine_args.get("pipeline_parallel_size", 1)
        return int(getattr(self, "shards", 1) * (stages if type(stages) is int and stages > 0 else 1))


class LlamaCppSection(DeterministicSection):
    """Keys of llama.cpp."""

    engine: Literal["llamacpp"] = "llamacpp"
    """Engine that runs the model: `builtin`, or one that needs the extra of its name: `vllm`, or `llamacpp`
    for a GGUF file."""

    max_sequences: int = Field(64, ge=1, le=256)
    """Sequences that one replica holds at once."""

    dtype: Literal[Dtype.FLOAT32] = Dtype.FLOAT32
    """Compute type. The file decides the type of each weight."""

    max_model_len: int | None = Field(None, ge=1)
    """Longest sequence, in tokens; null: as long as the model allows."""

    kv_tokens: Annotated[int | Literal["auto"], OrAuto(1)] = AUTO
    """KV cache positions of one replica, for all its sequences, in 16 bits each. `auto`: as many as a quarter
    of the available memory holds, at most 16,384, or `max_model_len` if that is more."""


class Shards(Config):
    """Processes that share one model."""

    shards: int = Field(1, ge=1, le=64)
    """Processes that share one replica, all on one node, each with its own `threads`. Must divide the
    model's attention heads, KV heads and MLP width."""

    group_timeout_s: float = Field(60.0, gt=0)
    """Time within which every process of a shared replica must take part in a collective operation; a
    replica that has lost one is restarted as a whole. On vLLM: longest time of one step of its processes."""


class Sharding(Shards):
    """Processes of the builtin engine that share one model."""

    group_start_timeout_s: float = Field(600.0, gt=0)
    """Time within which all processes of a shared replica must have started, and then have loaded their
    parts."""

    @property
    def heartbeat_s(self) -> float:
        """Longest time without a plan for the followers, and until an idle leader notices a lost one."""
        return min(self.group_timeout_s / HEARTBEATS_PER_TIMEOUT, _LONGEST_HEARTBEAT_S)


def quantization_fault(section: BuiltinSection, device: str) -> str:
    """Return the reason why a section's `quantization` cannot be had on a device; empty if it can."""
    if section.quantization is Quantization.NONE:
        return ""
    fault = f"quantization: is {section.quantization}, must be none with"
    if getattr(section, "shards", 1) > 1:
        return f"{fault} shards"
    return f"{fault} device {device}" if device != "cpu" else ""


class ReplicaConfig(ModelSection):
    """Keys of a process that serves a model, on any engine."""

    role: Role
    """Tier of the service."""

    model: ModelPath | None = None
    """Folder of the model, or `org/name@revision` on the model hub."""

    device: Literal["cpu", "cuda"] = "cpu"
    """Device of torch: `cpu` or `cuda`, the first GPU that the process may use."""

    @model_validator(mode="after")
    def _names_what_its_engine_reads(self) -> Self:
        if fault := file_fault(self.model, str(getattr(self, ENGINE))):
            raise ValueError(fault)
        return self

    @property
    def num_processes(self) -> int:
        """Processes that compute the model."""
        return 1

    @property
    def batch_tokens(self) -> int:
        """Token rows of one forward; the default becomes larger on a GPU, where rows cost little."""
        if self.max_batch_tokens != PREFILL_TOKENS or self.device == "cpu":
            return self.max_batch_tokens
        return min(_MOST_BATCH_TOKENS, self.max_sequences * VERIFIED_TOKENS + PREFILL_TOKENS)


class VllmConfig(VllmSection, ReplicaConfig):
    """Everything that vLLM is started with."""

    model: ModelPath
    """Folder of the model, or `org/name@revision` on the model hub."""


class LlamaCppConfig(LlamaCppSection, ReplicaConfig):
    """Everything that llama.cpp is started with."""

    model: ModelPath
    """GGUF file of the model; of one in several parts, the first."""

    device: Literal["cpu"] = "cpu"
    """Device of the head; llama.cpp computes on the devices that its build supports."""

    @property
    def batch_tokens(self) -> int:
        """Token rows of one forward, no more than the library computes at once."""
        return min(self.max_batch_tokens, PREFILL_TOKENS)


class ModelConfig(BuiltinSection, ReplicaConfig):
    """Everything that a builtin or simulated engine is built from."""

    simulated: SimulatedConfig | None = None
    """Parameters of a simulated model, such as `{base_s: 0.02}`, instead of `model`."""

    @property
    def fixed_kv_tokens(self) -> int:
        """`kv_tokens` where it is a number, as it is without a GPU."""
        assert isinstance(self.kv_tokens, int), "refused when the configuration was read"
        return self.kv_tokens

    @property
    def sharding(self) -> Sharding | None:
        """The process group that shares the model; None if one process holds all of it."""
        return None

    @model_validator(mode="after")
    def _can_be_quantized(self) -> Self:
        if fault := quantization_fault(self, self.device):
            raise ValueError(fault)
        return self

    @model_validator(mode="after")
    def _has_memory_to_measure(self) -> Self:
        if self.kv_tokens == AUTO and (self.device == "cpu" or self.simulated is not None):
            reason = f"device is {self.device}" if self.simulated is None else "a simulated model has none"
            raise ValueError(f"kv_tokens: is {AUTO}, the memory of a GPU, but {reason}: set a number")
        return self

    @model_validator(mode="after")
    def _has_one_model(self) -> Self:
        if (self.model is None) == (self.simulated is None):
            raise ValueError("give either model or simulated")
        return self
