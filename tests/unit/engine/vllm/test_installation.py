"""Configurations that vLLM cannot serve, and faults of its installation: one line that names the key."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from fly.errors import ModelError
from services.common.config import parse
from services.engine.vllm.library import VERSION, check_version, load_library
from services.target.config import VllmTargetConfig
from services.target.servicer import create_host


def config(**fields: Any) -> VllmTargetConfig:
    return parse(VllmTargetConfig, {"model": "m", "engine": "vllm", **fields}, "target")


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
        load_library("cpu", {})
