"""Arguments and environment of vLLM, as they follow from the keys of a replica. Pure; imports no vLLM."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from flyserve.core.errors import ConfigError
from services.common.config_faults import nearest
from services.engine.config import VllmConfig, VllmSection

_SCHEDULING = (
    *("scheduler_cls", "scheduling_policy", "async_scheduling", "enable_chunked_prefill"),
    "enable_prefix_caching",
)
_SCORING = ("max_logprobs", "logprobs_mode")
RESERVED: Mapping[str, str] = {
    "model": "the key model sets it",
    "revision": "the key model names it, as org/name@revision",
    "tensor_parallel_size": "the key shards sets it",
    "prefill_context_parallel_size": "shards and pipeline_parallel_size give the number of GPUs",
    "data_parallel_size": "the key replicas sets the number of replicas",
    "nnodes": "all processes of a replica run on one node",
    "distributed_executor_backend": "vLLM starts its processes inside the replica's own actor",
    "max_num_seqs": "the key max_sequences sets it, because the load is measured against it",
    "max_num_batched_tokens": "the key max_batch_tokens sets it",
    **dict.fromkeys(_SCHEDULING, "FlyServe's own scheduler runs vLLM's workers"),
    **dict.fromkeys(_SCORING, "FlyServe's own head scores the model's logits"),
    "worker_extension_cls": "FlyServe drives the workers by its own",
    "disable_log_stats": "FlyServe reports the load itself",
    "skip_tokenizer_init": "FlyServe sends and receives token ids",
    "speculative_config": "FlyServe drafts itself",
    "kv_transfer_config": "another process would compute positions that a round scores",
}
"""Arguments of vLLM that `engine_args` does not accept, each with the reason."""

MEMORY_ARGUMENTS = ("gpu_memory_utilization", "kv_cache_memory_bytes", "num_gpu_blocks_override")
"""Arguments of vLLM that size its KV memory."""

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

_INSIDE = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""Runs a single worker in this process. NOTE: inside a placement group vLLM would start Ray actors by
default, and wait forever for the resources that the replica's own actor holds."""


def engine_arguments(config: VllmConfig, folder: Path, known: Collection[str]) -> dict[str, Any]:
    """Return keyword arguments of vLLM's `EngineArgs`, whose names are `known`.

    `engine_args` is applied last: it overrides every argument that is not reserved. `folder` holds the model.

    Raises:
        ConfigError: `engine_args` has an unknown or a reserved argument, or a value that cannot be served, or
            `deterministic` is set on a CPU.
    """
    faults = [*config_faults(config), *_unknown(config.engine_args, known)]
    if config.deterministic and config.device == "cpu":
        faults.append("deterministic: is true, must be false with device cpu: vLLM has this mode on GPUs")
    if faults:
        raise ConfigError("; ".join(faults))
    return {
        "model": str(folder),
        "dtype": config.dtype.value,
        "max_num_seqs": config.max_sequences,
        # NOTE: vLLM refuses fewer token rows than sequences.
        "max_num_batched_tokens": max(config.batch_tokens, config.max_sequences),
        "tensor_parallel_size": getattr(config, "shards", 1),
        "distributed_executor_backend": "mp" if config.num_processes > 1 else _INSIDE,
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
    always = {"OMP_NUM_THREADS": str(config.num_threads)}
    if config.deterministic:
        always["VLLM_BATCH_INVARIANT"] = "1"
    return always | {name: value for name, value in defaults.items() if name not in current}


def config_faults(config: VllmSection) -> Iterator[str]:
    """Yield each argument that vLLM cannot be run with: its name, its value and the reason."""
    for name, value in config.engine_args.items():
        if (reason := _argument_fault(name, value)) is not None:
            yield f"engine_args.{name}: is {value!r}: {reason}"


def _argument_fault(name: str, value: Any) -> str | None:
    """Return the reason why an argument is not accepted; None if it is."""
    if name in RESERVED:
        return f"cannot be set here: {RESERVED[name]}"
    if name == "pipeline_parallel_size" and not (type(value) is int and value > 0):
        return "must be an integer of at least 1"
    return None


def _unknown(arguments: Mapping[str, Any], known: Collection[str]) -> Iterator[str]:
    for name in arguments.keys() - set(known):
        near = nearest(name, known)
        yield f"engine_args.{name}: vLLM has no such argument" + (f", did you mean {near!r}?" if near else "")


def _on_cpus(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the build for CPUs; compiling a model there takes minutes."""
    has_memory = engine_args.keys() & set(MEMORY_ARGUMENTS)
    return _ON_CPUS if has_memory else _ON_CPUS | _CPU_MEMORY
