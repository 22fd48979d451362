"""A vLLM that lacks a private name is refused with the name; a missing installation with the remedy."""

import sys
from collections import namedtuple
from dataclasses import make_dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from flyserve.core.errors import ModelError
from services.common.config import parse
from services.engine.vllm.hooks import _PLANS, _RUNNER, HooksV1, HooksV2, hooks_of
from services.engine.vllm.library import load_library
from services.target.config import VllmTargetConfig
from services.target.servicer import create_host

OUTPUT = "vllm.v1.core.sched.output"


def tree(paths: tuple[str, ...]) -> SimpleNamespace:
    """Return an object that has these dotted names."""
    found = SimpleNamespace()
    for path in paths:
        owner = found
        for name in path.split("."):
            if not hasattr(owner, name):
                setattr(owner, name, SimpleNamespace())
            owner = getattr(owner, name)
    return found


class GPUModelRunner(SimpleNamespace):
    """Has the name of vLLM's."""


def worker(monkeypatch: pytest.MonkeyPatch, is_v2: bool, without: str = "", is_async: bool = False) -> Any:
    hooks = HooksV2 if is_v2 else HooksV1
    plans: Any = ModuleType(OUTPUT)
    for name, fields in _PLANS.items():
        kept = [field for field in fields if f"{name}.{field}" != without]
        setattr(plans, name, make_dataclass(name, kept))
    for module in ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched"):
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
    monkeypatch.setitem(sys.modules, OUTPUT, plans)
    monkeypatch.setattr(sys.modules["vllm.v1.core.sched"], "output", plans, raising=False)
    fields = [field for field in hooks.state_fields if f"ExecuteModelState.{field}" != without]
    monkeypatch.setattr(
        sys.modules[__name__], "ExecuteModelState", namedtuple("State", fields), raising=False
    )
    names = tuple(name for name in (*_RUNNER, *hooks.names) if name != without)
    scheduling = SimpleNamespace(async_scheduling=is_async)
    return SimpleNamespace(
        use_v2_model_runner=is_v2,
        model_runner=GPUModelRunner(**vars(tree(names))),
        vllm_config=SimpleNamespace(scheduler_config=scheduling),
    )


@pytest.mark.parametrize("is_v2", [False, True])
def test_a_version_with_all_names_is_driven(monkeypatch: pytest.MonkeyPatch, is_v2: bool) -> None:
    assert isinstance(hooks_of(worker(monkeypatch, is_v2)), HooksV2 if is_v2 else HooksV1)


@pytest.mark.parametrize(
    ("is_v2", "name"),
    [
        (False, "input_batch.token_ids_cpu"),
        (False, "execute_model_state"),
        (True, "req_states.all_token_ids.stage_write"),
        (True, "ExecuteModelState.input_batch"),
        (False, "SchedulerOutput.kv_cache_block_copies"),
    ],
)
def test_a_missing_name_is_in_the_error(monkeypatch: pytest.MonkeyPatch, is_v2: bool, name: str) -> None:
    with pytest.raises(RuntimeError, match=f"^this vLLM has no {name}$"):
        hooks_of(worker(monkeypatch, is_v2, name))


def test_async_scheduling_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="async_scheduling is on"):
        hooks_of(worker(monkeypatch, False, is_async=True))


async def test_a_host_without_vllm_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("LOGGING_STREAM", "LOGGING_LEVEL", "NO_USAGE_STATS", "WORKER_MULTIPROC_METHOD"):
        monkeypatch.setenv(f"VLLM_{name}", "")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "")
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ModelError, match=r"engine is vllm, but vLLM cannot be imported.*flyserve\[vllm\]"):
        await create_host(parse(VllmTargetConfig, {"model": "m", "engine": "vllm"}, "target"))


def test_a_build_for_another_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, platforms = ModuleType("vllm.engine.arg_utils"), ModuleType("vllm.platforms")
    arguments.EngineArgs = make_dataclass("EngineArgs", ["model"])  # type: ignore[attr-defined]
    platforms.current_platform = SimpleNamespace(device_type="cpu")  # type: ignore[attr-defined]
    for module in (ModuleType("vllm"), ModuleType("vllm.engine"), arguments, platforms):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert list(load_library("cpu", {})) == ["model"]
    with pytest.raises(ModelError, match="device is cuda, but this vLLM is built for cpu"):
        load_library("cuda", {})
