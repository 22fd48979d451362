"""Arguments of vLLM that follow from the configuration of a replica; pure."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

from fly.errors import ConfigError
from services.common.config import nearest
from services.engine.config import Dtype

SCHEDULER = "services.engine.vllm.scheduler.create_scheduler"
MIN_LOGPROBS = 8
"""Candidates that every request needs: three for the entropy, more to see ties."""
DEFAULT_LOGPROBS = 128
"""Most candidates per position, unless `engine_args.max_logprobs` sets it."""
_CPU_BLOCK_TOKENS = 32

_FIXED = {
    "model": "is set by the key model",
    "scheduler_cls": "is set by FlyServe",
    "enable_prefix_caching": "is always on: a round reuses the KV of the rounds before it",
    "disable_log_stats": "is set by FlyServe, which reports the load from vLLM's statistics",
    "enable_log_requests": "is set by FlyServe, which logs requests itself",
    "skip_tokenizer_init": "is set by FlyServe, which sends and receives token ids",
    "logprobs_mode": "must be raw_logprobs, its default",
    "speculative_config": "is not possible: FlyServe drafts itself",
    "kv_transfer_config": "is not possible: another process would serve rows without scores",
    "data_parallel_size": "is not possible: set replicas instead",
}


class ReplicaConfig(Protocol):
    """The keys of a replica from which arguments follow."""

    @property
    def engine_args(self) -> Mapping[str, Any]: ...
    @property
    def dtype(self) -> Dtype: ...
    @property
    def device(self) -> str: ...
    @property
    def max_sequences(self) -> int: ...
    @property
    def max_batch_tokens(self) -> int: ...
    @property
    def model_fields_set(self) -> set[str]: ...


def engine_arguments(
    config: ReplicaConfig, folder: Path, known: Collection[str], shards: int = 1
) -> dict[str, Any]:
    """Return the keyword arguments of vLLM's `AsyncEngineArgs`, whose names are `known`.

    Raises:
        ConfigError: vLLM has no such argument, or FlyServe sets it.
    """
    check_names(config.engine_args, known)
    derived: dict[str, Any] = {
        "model": str(folder),
        "dtype": config.dtype.value,
        "max_num_seqs": config.max_sequences,
        "tensor_parallel_size": shards,
        "max_logprobs": DEFAULT_LOGPROBS,
        "scheduling_policy": "priority",
        "scheduler_cls": SCHEDULER,
        "enable_prefix_caching": True,
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
        "enable_log_requests": False,
    }
    if "max_batch_tokens" in config.model_fields_set:
        # vLLM refuses fewer token rows than sequences.
        derived["max_num_batched_tokens"] = max(config.max_batch_tokens, config.max_sequences)
    if config.device == "cpu":
        derived |= {"enforce_eager": True, "block_size": _CPU_BLOCK_TOKENS}
    arguments = derived | dict(config.engine_args)
    _check_logprobs(arguments["max_logprobs"])
    return arguments


def check_names(given: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise `ConfigError` for an argument that vLLM does not have, or that FlyServe sets."""
    for name in given:
        if name in _FIXED:
            raise ConfigError(f"engine_args.{name}: {_FIXED[name]}")
        if name not in known:
            near = nearest(name, known)
            hint = f"; did you mean {near}?" if near else ""
            raise ConfigError(f"engine_args.{name}: vLLM has no such argument{hint}")


def _check_logprobs(found: Any) -> None:
    if not isinstance(found, int) or (found != -1 and found < MIN_LOGPROBS):
        raise ConfigError(
            f"engine_args.max_logprobs: is {found!r}, must be at least {MIN_LOGPROBS}, or -1 for all"
        )
