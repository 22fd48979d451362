"""Arguments and environment of vLLM, as they follow from the keys of a replica. Pure; imports no vLLM."""

from collections.abc import Iterator, Mapping
from typing import Any

from fly.errors import ConfigError
from services.engine.config import EngineName, EngineSection, ModelConfig, ModelSection, Sharding

RESERVED: Mapping[str, str] = {
    "model": "the key model sets it",
    "revision": "the key model names it, as org/name@revision",
    "tensor_parallel_size": "the key shards sets it",
    "prefill_context_parallel_size": "shards and pipeline_parallel_size give the number of GPUs",
    "data_parallel_size": "the key replicas sets the number of replicas",
    "nnodes": "all processes of a replica run on one node",
    "distributed_executor_backend": "vLLM starts its processes inside the replica's own actor",
    "max_num_seqs": "the key max_sequences sets it, because the load is measured against it",
    "worker_extension_cls": "FlyServe sets its own",
}
"""Arguments of vLLM that `engine_args` does not accept, each with the reason."""

MEMORY_ARGUMENTS = ("gpu_memory_utilization", "kv_cache_memory_bytes", "num_gpu_blocks_override")
"""Arguments of vLLM that size its KV memory."""

ENTROPY_CANDIDATES = 3
"""Log-probabilities per position from which entropies are computed."""

_PIPELINE = "pipeline_parallel_size"
_DEFAULT_BATCH_TOKENS = ModelSection.model_fields["max_batch_tokens"].default
_DEFAULT_KV_TOKENS = ModelSection.model_fields["kv_tokens"].default


def engine_arguments(config: ModelConfig) -> dict[str, Any]:
    """Return the keyword arguments of vLLM's `AsyncEngineArgs`.

    `engine_args` is applied last, so it overrides `dtype`, `max_num_batched_tokens` and `scheduling_policy`.
    `model` is `config.model` as it is: download a model of the hub first.

    Raises:
        ConfigError: `engine_args` has a reserved argument, or a value that FlyServe cannot work with.
    """
    assert isinstance(config, EngineSection), "the tier has no choice of engines"
    if faults := list(config_faults(config)):
        raise ConfigError("; ".join(faults))
    return {
        "model": str(config.model),
        "dtype": config.dtype.value,
        "max_num_seqs": config.max_sequences,
        "tensor_parallel_size": num_workers(config) // _pipeline_stages(config.engine_args),
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
        **_batch(config),
        **_executor(num_workers(config)),
        **config.engine_args,
    }


def environment(config: ModelConfig) -> dict[str, str]:
    """Return the environment variables to set before vLLM is imported.

    On CPUs, `nobind` keeps vLLM from pinning the threads of every replica of a machine to the same cores.
    NOTE: `VLLM_CPU_KVCACHE_SPACE` is not set: it would override `engine_args.kv_cache_memory_bytes`.
    """
    # NOTE: Ray sets the threads to the CPUs of the whole actor, which each of vLLM's processes would inherit.
    common = {"OMP_NUM_THREADS": str(config.threads), "VLLM_NO_USAGE_STATS": "1"}
    return common if config.device == "cuda" else {**common, "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def num_workers(config: EngineSection) -> int:
    """Return the number of processes, each with a GPU of its own or none, that vLLM starts for a replica."""
    shards = config.shards if isinstance(config, Sharding) else 1
    return shards * _pipeline_stages(config.engine_args)


def config_faults(config: EngineSection) -> Iterator[str]:
    """Yield each key that vLLM cannot be run with: the key, its value, and the reason or the remedy."""
    if config.engine is not EngineName.VLLM:
        return
    for name, value in config.engine_args.items():
        if (reason := _argument_fault(name, value)) is not None:
            yield f"engine_args.{name}: is {value!r}: {reason}"
    if isinstance(config, ModelSection) and config.kv_tokens != _DEFAULT_KV_TOKENS:
        arguments = ", ".join(f"engine_args.{name}" for name in MEMORY_ARGUMENTS)
        yield f"kv_tokens: is {config.kv_tokens}: vLLM sizes its own memory: set one of {arguments} instead"


def _argument_fault(name: str, value: Any) -> str | None:
    """Return the reason why an argument is not accepted; None if it is."""
    if name in RESERVED:
        return f"cannot be set here: {RESERVED[name]}"
    if name == "enable_prefix_caching" and value is not True:
        return "must be true: every round would compute the whole sequence again"
    if name == "logprobs_mode" and value != "raw_logprobs":
        return "must be raw_logprobs: entropies and choices are those of the model itself"
    if name == "max_logprobs" and not _is_at_least(value, ENTROPY_CANDIDATES) and value != -1:
        return f"must be at least {ENTROPY_CANDIDATES}, from which entropies are computed, or -1 for all"
    if name == _PIPELINE and not _is_at_least(value, 1):
        return "must be an integer of at least 1"
    return None


def _is_at_least(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


def _pipeline_stages(engine_args: Mapping[str, Any]) -> int:
    """Return the stages of the pipeline; 1 for a value that `config_faults` reports."""
    stages = engine_args.get(_PIPELINE, 1)
    return stages if _is_at_least(stages, 1) else 1


def _batch(config: ModelSection) -> dict[str, Any]:
    """Return the token budget of a forward; at its default vLLM chooses one for the device."""
    is_default = config.max_batch_tokens == _DEFAULT_BATCH_TOKENS
    return {} if is_default else {"max_num_batched_tokens": config.max_batch_tokens}


def _executor(workers: int) -> dict[str, Any]:
    """Return how vLLM starts its processes.

    NOTE: inside a placement group it would start Ray actors by default, and wait forever for the resources
    that the replica's own actor holds.
    """
    return {"distributed_executor_backend": "mp"} if workers > 1 else {}
