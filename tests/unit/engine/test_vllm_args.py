from typing import Any

import pytest

from fly.errors import ConfigError
from services.common.config import parse
from services.drafter.config import DrafterConfig
from services.engine.vllm_args import RESERVED, engine_arguments, environment, num_workers
from services.target.config import TargetConfig


def target(**keys: Any) -> TargetConfig:
    return parse(TargetConfig, {"model": "/m/big", "engine": "vllm", **keys}, "target")


def test_the_keys_of_a_replica_become_arguments() -> None:
    assert engine_arguments(target(shards=4, max_sequences=128, dtype="float32", max_batch_tokens=4096)) == {
        "model": "/m/big",
        "dtype": "float32",
        "max_num_seqs": 128,
        "max_num_batched_tokens": 4096,
        "tensor_parallel_size": 4,
        "distributed_executor_backend": "mp",
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
    }


def test_a_drafter_runs_in_one_process_and_vllm_chooses_its_token_budget() -> None:
    drafter = parse(DrafterConfig, {"model": "/m/small", "engine": "vllm"}, "drafter")
    arguments = engine_arguments(drafter)
    assert arguments["tensor_parallel_size"] == 1
    assert not arguments.keys() & {"max_num_batched_tokens", "distributed_executor_backend"}


def test_other_arguments_arrive_and_override_what_follows_from_the_keys() -> None:
    more = {"quantization": "fp8", "dtype": "auto", "max_num_batched_tokens": 8192, "max_logprobs": -1}
    arguments = engine_arguments(target(max_batch_tokens=1024, engine_args=more))
    assert {name: arguments[name] for name in more} == more


def test_a_pipeline_multiplies_the_processes_but_not_the_shards() -> None:
    config = target(shards=4, engine_args={"pipeline_parallel_size": 2})
    arguments = engine_arguments(config)
    assert num_workers(config) == 8
    assert (arguments["tensor_parallel_size"], arguments["pipeline_parallel_size"]) == (4, 2)


def test_every_reserved_argument_has_a_reason() -> None:
    for name, reason in RESERVED.items():
        with pytest.raises(ConfigError, match=f"engine_args.{name}: is 2: cannot be set here: {reason}"):
            engine_arguments(target(engine_args={name: 2}))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"engine_args": {"enable_prefix_caching": False}}, "enable_prefix_caching: is False: must be true"),
        ({"engine_args": {"logprobs_mode": "processed_logits"}}, "must be raw_logprobs"),
        ({"engine_args": {"max_logprobs": 2}}, "max_logprobs: is 2: must be at least 3"),
        ({"engine_args": {"pipeline_parallel_size": "2"}}, "pipeline_parallel_size: is '2': must be an int"),
        ({"engine_args": {"pipeline_parallel_size": True}}, "pipeline_parallel_size: is True"),
        ({"kv_tokens": 1024}, "kv_tokens: is 1024: vLLM sizes its own memory: set one of engine_args.gpu_"),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_the_reason(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        engine_arguments(target(**keys))
    assert "\n" not in str(error.value)


def test_every_fault_is_named() -> None:
    with pytest.raises(ConfigError) as error:
        engine_arguments(target(kv_tokens=1, engine_args={"model": "/other", "max_logprobs": 0}))
    assert str(error.value).count(": is ") == 3


def test_on_cpus_threads_are_counted_and_not_pinned() -> None:
    on_gpu = {"OMP_NUM_THREADS": "2", "VLLM_NO_USAGE_STATS": "1"}
    assert environment(target(threads=2, device="cuda")) == on_gpu
    assert environment(target(threads=2)) == {**on_gpu, "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
