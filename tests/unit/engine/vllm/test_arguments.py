"""Arguments for vLLM, and faults of its installation: each is one line that names the key."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fly.errors import ConfigError, ModelError
from fly.messages import Role
from services.common.config import parse
from services.drafter.config import DrafterConfig
from services.engine.vllm.arguments import engine_arguments
from services.engine.vllm.library import VERSION, check_version, load_library
from services.target.config import TargetConfig
from services.target.servicer import create_host

KNOWN = {"max_model_len", "quantization", "max_logprobs", "max_num_batched_tokens", "gpu_memory_utilization"}


def config(**fields: Any) -> TargetConfig:
    return parse(TargetConfig, {"model": "m", "engine": "vllm", **fields}, "target")


def arguments(**fields: Any) -> dict[str, Any]:
    shards = fields.get("shards", 1)
    return engine_arguments(config(**fields), Path("folder"), KNOWN, shards)


def test_the_keys_of_a_replica_become_arguments() -> None:
    found = arguments(dtype="float32", max_sequences=8, shards=2, device="cuda")
    assert found.items() >= {
        "model": "folder", "dtype": "float32", "max_num_seqs": 8, "tensor_parallel_size": 2,
        "enable_prefix_caching": True, "scheduling_policy": "priority", "max_logprobs": 128,
    }.items()  # fmt: skip
    assert "max_num_batched_tokens" not in found and "block_size" not in found


def test_token_rows_are_passed_where_they_are_set_and_valid() -> None:
    assert arguments(max_batch_tokens=2048)["max_num_batched_tokens"] == 2048
    assert arguments(max_batch_tokens=16, max_sequences=64)["max_num_batched_tokens"] == 64


def test_a_cpu_takes_blocks_of_32_tokens() -> None:
    assert arguments()["block_size"] == 32 and arguments()["enforce_eager"] is True


def test_engine_args_override_what_follows_from_other_keys() -> None:
    found = arguments(engine_args={"max_model_len": 100, "max_logprobs": 20, "quantization": "fp8"})
    assert (found["max_model_len"], found["max_logprobs"], found["quantization"]) == (100, 20, "fp8")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"max_model_length": 5},
            r"engine_args.max_model_length: vLLM has no such.*max_model_len\?",
        ),
        ({"zzz": 5}, r"engine_args.zzz: vLLM has no such argument$"),
        ({"model": "x"}, "engine_args.model: is set by the key model"),
        ({"enable_prefix_caching": False}, "engine_args.enable_prefix_caching: is always on"),
        ({"speculative_config": {}}, "engine_args.speculative_config: is not possible"),
        ({"max_logprobs": 3}, "engine_args.max_logprobs: is 3, must be at least 8"),
        ({"max_logprobs": "many"}, "engine_args.max_logprobs: is 'many', must be"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        arguments(engine_args=given)


def test_engine_args_need_the_engine() -> None:
    with pytest.raises(ConfigError, match="engine_args: are those of vLLM"):
        parse(TargetConfig, {"model": "m", "engine_args": {"quantization": "fp8"}}, "target")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"role": "sub_drafter", "model": "m"}, "engine: is vllm, must be builtin for a sub-drafter"),
        ({"sub_drafter": "h:1", "model": "m"}, "sub_drafter: is h:1, but a drafter on vLLM uses none"),
        ({"simulated": {}}, "simulated: must be absent with engine vllm"),
    ],
)
def test_a_drafter_on_vllm_is_a_model_without_sub_drafters(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(DrafterConfig, {"engine": "vllm", **fields}, "drafter")


def test_another_version_is_refused_with_both() -> None:
    check_version(VERSION)
    check_version(f"{VERSION}+cpu")
    with pytest.raises(ModelError, match=f"vLLM 0.31.1 is installed.* needs vLLM {VERSION}"):
        check_version("0.31.1")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModuleType | None], None]:
    """Install a module as `vllm`, or none."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("VLLM_LOGGING_STREAM", "VLLM_LOGGING_LEVEL", "VLLM_NO_USAGE_STATS"):
        monkeypatch.setenv(name, "")
    for name in ("VLLM_WORKER_MULTIPROC_METHOD", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_KVCACHE_SPACE"):
        monkeypatch.setenv(name, "")
    return lambda module: monkeypatch.setitem(sys.modules, "vllm", module)  # type: ignore[arg-type]


async def test_a_host_without_vllm_is_refused_with_the_remedy(installed: Any) -> None:
    installed(None)
    with pytest.raises(ModelError, match=rf"vLLM {VERSION} is not installed here.*flyserve\[vllm\]"):
        await create_host(config())


def test_a_vllm_of_another_version_is_not_used(installed: Any) -> None:
    other = ModuleType("vllm")
    other.__version__ = "0.1.2"  # type: ignore[attr-defined]
    installed(other)
    with pytest.raises(ModelError, match=r"vLLM 0\.1\.2 is installed"):
        load_library("cpu", 1)


def test_sub_drafters_stay_builtin() -> None:
    assert parse(DrafterConfig, {"model": "m", "role": "sub_drafter"}, "drafter").role is Role.SUB_DRAFTER
