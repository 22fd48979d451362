"""Arguments and environment of vLLM, as they follow from the keys of a replica. Pure; imports no vLLM."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from fly.errors import ConfigError
from services.common.config_faults import nearest
from services.engine.config import ModelSection, Shards, VllmConfig, VllmSection

RESERVED: Mapping[str, str] = {
    "model": "the key model sets it",
    "revision": "the key model names it, as org/name@revision",
    "tensor_parallel_size": "the key shards sets it",
    "prefill_context_parallel_size": "shards and pipeline_parallel_size give the number of GPUs",
    "data_parallel_size": "the key replicas sets the number of replicas",
    "nnodes": "all processes of a replica run on one node",
    "distributed_executor_backend": "vLLM starts its processes inside the replica's own actor",
    "max_num_seqs": "the key max_sequences sets it, because the load is measured against it",
    "scheduler_cls": "FlyServe sets its own, which computes every position that a round scores",
    "disable_log_stats": "FlyServe reports the load from vLLM's statistics",
    "enable_log_requests": "FlyServe logs requests itself",
    "skip_tokenizer_init": "FlyServe sends and receives token ids",
    "speculative_config": "FlyServe drafts itself",
    "kv_transfer_config": "another process would compute positions that a round scores",
}
"""Arguments of vLLM that `engine_args` does not accept, each with the reason."""

MEMORY_ARGUMENTS = ("gpu_memory_utilization", "kv_cache_memory_bytes", "num_gpu_blocks_override")
"""Arguments of vLLM that size its KV memory."""

MIN_LOGPROBS = 8
"""Candidates per position that every request needs: three for the entropy, more to find ties."""
DEFAULT_LOGPROBS = 128
"""Most candidates per position, unless `engine_args.max_logprobs` sets it."""

_ON_CPUS = {"enforce_eager": True, "block_size": 32}
DEFAULT_CPU_KV_BYTES = 1 << 30
"""KV memory on CPUs, unless an argument sizes it."""
_CPU_MEMORY = {"kv_cache_memory_bytes": DEFAULT_CPU_KV_BYTES}
"""vLLM would take nearly all memory of the machine."""

_ENVIRONMENT = {
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    # A process with gRPC threads must not fork.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
_ENVIRONMENT_ON_CPUS = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}

_IN_ENGINE = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
_PIPELINE = "pipeline_parallel_size"
_DEFAULT_BATCH_TOKENS = ModelSection.model_fields["max_batch_tokens"].default


def engine_arguments(config: VllmConfig, folder: Path, known: Collection[str]) -> dict[str, Any]:
    """Return keyword arguments of vLLM's `AsyncEngineArgs`, whose names are `known`.

    `engine_args` is applied last: it overrides every argument that is not reserved. `folder` holds the model.

    Raises:
        ConfigError: `engine_args` has an unknown or a reserved argument, or a value that cannot be served.
    """
    if faults := [*config_faults(config), *_unknown(config.engine_args, known)]:
        raise ConfigError("; ".join(faults))
    return {
        "model": str(folder),
        "dtype": config.dtype.value,
        "max_num_seqs": config.max_sequences,
        "max_logprobs": DEFAULT_LOGPROBS,
        "tensor_parallel_size": _shards(config),
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
        **_executor(num_workers(config), config.device),
        **_batch(config),
        **(_on_cpus(config.engine_args) if config.device == "cpu" else {}),
        **config.engine_args,
    }


def environment(config: VllmConfig, current: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables to set before vLLM is imported; those of `current` are kept.

    On CPUs, `nobind` keeps vLLM from pinning the threads of all replicas of a machine to the same cores.
    NOTE: `VLLM_CPU_KVCACHE_SPACE` is not set: it would override `engine_args.kv_cache_memory_bytes`.
    """
    defaults = _ENVIRONMENT | (_ENVIRONMENT_ON_CPUS if config.device == "cpu" else {})
    # NOTE: Ray sets the threads to the CPUs of the whole actor, which each of vLLM's processes would inherit.
    threads = {"OMP_NUM_THREADS": str(config.num_threads)}
    return threads | {name: value for name, value in defaults.items() if name not in current}


def num_workers(config: VllmSection) -> int:
    """Return the number of processes, each with a GPU of its own or none, that vLLM starts for a replica."""
    return _shards(config) * _pipeline_stages(config.engine_args)


def config_faults(config: VllmSection) -> Iterator[str]:
    """Yield each argument that vLLM cannot be run with: its name, its value and the reason."""
    for name, value in config.engine_args.items():
        if (reason := _argument_fault(name, value)) is not None:
            yield f"engine_args.{name}: is {value!r}: {reason}"


def _argument_fault(name: str, value: Any) -> str | None:
    """Return the reason why an argument is not accepted; None if it is."""
    if name in RESERVED:
        return f"cannot be set here: {RESERVED[name]}"
    if name == "enable_prefix_caching" and value is not True:
        return "must be true: every round would compute the whole sequence again"
    if name == "logprobs_mode" and value != "raw_logprobs":
        return "must be raw_logprobs: entropies and choices are those of the model itself"
    if name == "max_logprobs" and not _is_at_least(value, MIN_LOGPROBS) and value != -1:
        return f"must be at least {MIN_LOGPROBS}, or -1 for all"
    if name == _PIPELINE and not _is_at_least(value, 1):
        return "must be an integer of at least 1"
    return None


def _unknown(arguments: Mapping[str, Any], known: Collection[str]) -> Iterator[str]:
    for name in arguments.keys() - set(known):
        near = nearest(name, known)
        yield f"engine_args.{name}: vLLM has no such argument" + (f", did you mean {near!r}?" if near else "")


def _shards(config: VllmSection) -> int:
    return config.shards if isinstance(config, Shards) else 1


def _is_at_least(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


def _pipeline_stages(engine_args: Mapping[str, Any]) -> int:
    """Return the stages of the pipeline; 1 for a value that `config_faults` reports."""
    stages = engine_args.get(_PIPELINE, 1)
    return stages if _is_at_least(stages, 1) else 1


def _batch(config: ModelSection) -> dict[str, Any]:
    """Return the token budget of a forward; at its default vLLM chooses one for the device."""
    if config.max_batch_tokens == _DEFAULT_BATCH_TOKENS:
        return {}
    # NOTE: vLLM refuses fewer token rows than sequences.
    return {"max_num_batched_tokens": max(config.max_batch_tokens, config.max_sequences)}


def _on_cpus(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the build for CPUs; compiling a model there takes minutes."""
    has_memory = engine_args.keys() & set(MEMORY_ARGUMENTS)
    return _ON_CPUS if has_memory else _ON_CPUS | _CPU_MEMORY


def _executor(workers: int, device: str) -> dict[str, Any]:
    """Return how vLLM starts its processes.

    NOTE: inside a placement group it would start Ray actors by default, and wait forever for the resources
    that the replica's own actor holds. The build for CPUs would start a process even for a single worker, to
    set its number of threads, which `environment` does: the two spend more time on messages than on a small
    model.
    """
    if workers > 1:
        return {"distributed_executor_backend": "mp"}
    return {"distributed_executor_backend": _IN_ENGINE} if device == "cpu" else {}
