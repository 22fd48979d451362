from pathlib import Path
from typing import Any

import pytest

from flyserve.core.errors import ConfigError
from services.common.config import parse
from services.drafter.config import VllmDrafterConfig
from services.engine.config import VllmConfig
from services.engine.vllm_args import RESERVED, engine_arguments, environment
from services.target.config import VllmTargetConfig

KNOWN = {
    *RESERVED,
    *("quantization", "dtype", "seed", "pipeline_parallel_size"),
    *("kv_cache_memory_bytes", "gpu_memory_utilization"),
}


def arguments_of(config: VllmConfig) -> dict[str, Any]:
    return engine_arguments(config, Path("/m/big"), KNOWN)


def target(**keys: Any) -> VllmTargetConfig:
    return parse(VllmTargetConfig, {"model": "/m/big", "engine": "vllm", **keys}, "target")


def test_the_keys_of_a_replica_become_arguments() -> None:
    assert arguments_of(
        target(shards=4, max_sequences=128, dtype="float32", max_batch_tokens=4096, device="cuda")
    ) == {
        "model": "/m/big",
        "dtype": "float32",
        "max_num_seqs": 128,
        "max_num_batched_tokens": 4096,
        "tensor_parallel_size": 4,
        "distributed_executor_backend": "mp",
    }


@pytest.mark.parametrize(("device", "rows"), [("cpu", 512), ("cuda", 512 + 64 * 16)])
def test_a_drafter_runs_inside_its_process_with_the_rows_of_its_scheduler(device: str, rows: int) -> None:
    keys = {"model": "/m/small", "engine": "vllm", "device": device}
    arguments = arguments_of(parse(VllmDrafterConfig, keys, "drafter"))
    assert arguments["tensor_parallel_size"] == 1
    assert arguments["max_num_batched_tokens"] == rows
    assert arguments["distributed_executor_backend"].endswith(".UniProcExecutor")


def test_other_arguments_arrive_and_override_what_follows_from_the_keys() -> None:
    more = {"quantization": "fp8", "dtype": "auto", "seed": 3}
    arguments = arguments_of(target(engine_args=more))
    assert {name: arguments[name] for name in more} == more


def test_a_pipeline_multiplies_the_processes_but_not_the_shards() -> None:
    config = target(shards=4, engine_args={"pipeline_parallel_size": 2})
    arguments = arguments_of(config)
    assert config.num_processes == 8
    assert (arguments["tensor_parallel_size"], arguments["pipeline_parallel_size"]) == (4, 2)


def test_every_reserved_argument_has_a_reason() -> None:
    for name, reason in RESERVED.items():
        with pytest.raises(ConfigError, match=f"engine_args.{name}: is 2: cannot be set here: {reason}"):
            arguments_of(target(engine_args={name: 2}))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"engine_args": {"pipeline_parallel_size": "2"}}, "pipeline_parallel_size: is '2': must be an int"),
        ({"engine_args": {"pipeline_parallel_size": True}}, "pipeline_parallel_size: is True"),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_the_reason(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        arguments_of(target(**keys))
    assert "\n" not in str(error.value)


def test_an_unknown_argument_is_named_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"quantisation: vLLM has no such argument, did you mean 'quantiz"):
        arguments_of(target(engine_args={"quantisation": "fp8"}))


def test_a_forward_has_room_for_a_token_of_every_sequence() -> None:
    assert arguments_of(target(max_batch_tokens=8, max_sequences=32))["max_num_batched_tokens"] == 32


def test_on_cpus_vllm_neither_compiles_nor_takes_all_memory_unless_it_is_asked_to() -> None:
    arguments = arguments_of(target())
    assert (arguments["enforce_eager"], arguments["kv_cache_memory_bytes"]) == (True, 1 << 30)
    share = arguments_of(target(engine_args={"gpu_memory_utilization": 0.5}))
    assert "kv_cache_memory_bytes" not in share
    more = arguments_of(target(engine_args={"kv_cache_memory_bytes": 2 << 30}))
    assert more["kv_cache_memory_bytes"] == 2 << 30
    assert "enforce_eager" not in arguments_of(target(device="cuda"))


def test_every_fault_is_named() -> None:
    with pytest.raises(ConfigError) as error:
        arguments_of(target(engine_args={"model": "/other", "pipeline_parallel_size": 0}))
    assert str(error.value).count(": is ") == 2


def test_threads_are_those_of_the_key_and_on_cpus_not_pinned() -> None:
    on_cpus, on_gpus = (environment(target(threads=3, device=device), {}) for device in ("cpu", "cuda"))
    assert on_cpus == {**on_gpus, "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    assert (on_gpus["OMP_NUM_THREADS"], on_gpus["VLLM_NO_USAGE_STATS"]) == ("3", "1")
    assert "VLLM_CPU_KVCACHE_SPACE" not in on_cpus


def test_a_deterministic_model_sets_the_mode_of_vllm_and_needs_a_gpu() -> None:
    assert "VLLM_BATCH_INVARIANT" not in environment(target(device="cuda"), {})
    asked = target(device="cuda", deterministic=True)
    assert environment(asked, {"VLLM_BATCH_INVARIANT": "0"})["VLLM_BATCH_INVARIANT"] == "1"
    with pytest.raises(ConfigError, match="deterministic: is true, must be false with device cpu"):
        arguments_of(target(deterministic=True))


def test_the_environment_s_own_variables_are_kept_except_the_threads() -> None:
    current = {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_CPU_OMP_THREADS_BIND": "0-3", "OMP_NUM_THREADS": "64"}
    found = environment(target(threads=2), current)
    assert found.keys() & current.keys() == {"OMP_NUM_THREADS"}
    assert found["OMP_NUM_THREADS"] == "2"
