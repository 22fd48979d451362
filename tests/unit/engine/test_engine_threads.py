"""`threads: auto`: the number that an engine takes at its start, and the second load of its model."""

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from flyserve.core.messages import ForwardCosts, Role
from services.engine.base import Scorer
from services.engine.config import LlamaCppConfig, ModelConfig, VllmConfig
from services.engine.factory import EngineConfig, build_engine
from services.engine.forward import torch_runner
from services.engine.forward.torch_runner import TorchRunner, load_runner
from services.engine.llamacpp import start as llamacpp_start
from services.engine.loading import forward_costs
from services.engine.loading.model import load_model
from services.engine.vllm import start as vllm_start
from tests.support.gguf_files import gguf_of
from tests.support.tiny_models import make_tiny

ModelFolder = Callable[[str], Path]
_AUTO: dict[str, Any] = {"role": Role.TARGET, "threads": "auto", "max_threads": 2}


@pytest.fixture(autouse=True)
def one_thread_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(scorer: Scorer) -> ForwardCosts:
        return ForwardCosts(torch.get_num_threads(), torch.get_num_threads())

    monkeypatch.setattr(forward_costs, "measure_costs", measure)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Leave cycles of objects in memory."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_oss"])
def test_the_weights_are_freed_before_the_model_is_loaded_for_fewer_threads(
    model_folder: ModelFolder, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, weights = list[int](), list[weakref.ref[Any]]()

    def load(*arguments: Any) -> Any:
        assert not any(each() is not None for each in weights), "the first model is still in memory"
        threads.append(torch.get_num_threads())
        loaded = load_model(*arguments)
        weights.extend(map(weakref.ref, loaded.model.parameters()))
        return loaded

    monkeypatch.setattr(torch_runner, "load_model", load)
    build_engine(ModelConfig(model=model_folder(kind), kv_tokens=512, row_invariant="on", **_AUTO))
    assert threads == [2, 1]


@pytest.mark.usefixtures("no_collector")
def test_a_file_is_closed_before_it_is_loaded_for_fewer_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runners, load = list[weakref.ref[Any]](), llamacpp_start.load_gguf_runner

    def load_gguf_runner(config: LlamaCppConfig) -> Any:
        assert not any(each() is not None for each in runners)
        runner = load(config)
        runners.append(weakref.ref(runner))
        return runner

    monkeypatch.setattr(llamacpp_start, "load_gguf_runner", load_gguf_runner)
    file = gguf_of(make_tiny("llama"), tmp_path / "llama.gguf")
    build_engine(LlamaCppConfig(model=file, kv_tokens=512, deterministic=True, max_sequences=2, **_AUTO))
    assert len(runners) == 2


@pytest.mark.parametrize("engine", ["vllm", "builtin"])
def test_a_gpu_and_vllm_take_all_threads_and_load_their_model_once(
    model_folder: ModelFolder, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, folder = list[int](), model_folder("llama")

    def load(config: EngineConfig) -> TorchRunner:
        """Return a runner that proves its rows, on the CPU."""
        threads.append(config.num_threads)
        return load_runner(ModelConfig(role=Role.TARGET, model=folder, kv_tokens=512, row_invariant="on"))

    monkeypatch.setattr(torch_runner, "load_runner", load)
    monkeypatch.setattr(vllm_start, "load_vllm_runner", load)
    if engine == "vllm":
        build_engine(VllmConfig(model=folder, deterministic=True, **_AUTO))
    else:
        build_engine(ModelConfig(model=folder, device="cuda", **_AUTO))
    assert threads == [2]
