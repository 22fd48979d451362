"""The device of a process, with GPUs that are fakes: settings, the GPU of a rank, lost devices."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from flyserve.core.errors import InternalError, ModelError, NotReady
from flyserve.core.messages import ModelInfo, Role
from services.engine.config import Sharding
from services.engine.forward.choice import choose_forward
from services.engine.forward.forward_batch import ForwardBatch
from services.engine.forward.self_check import Forward
from services.engine.forward.torch_runner import TorchRunner
from services.engine.head.head_scorer import HeadScorer
from services.engine.loading.device import prepare_device, take_gpu
from services.engine.loading.model import device_map, load_model
from services.engine.memory.kv_cache import ContiguousKvCache
from services.engine.sharding.group import join_all
from services.engine.thread_engine import ThreadEngine
from tests.support.touchy_engine import opened


class FakeGpus:
    def __init__(self, number: int) -> None:
        self.number = number
        self.current: int | None = None

    def is_available(self) -> bool:
        return self.number > 0

    def device_count(self) -> int:
        return self.number

    def set_device(self, device: int) -> None:
        assert device < self.number
        self.current = device

    def get_device_properties(self, device: int) -> Any:
        return SimpleNamespace(uuid=f"GPU-{device}")


def uses_cudnn() -> bool:
    return bool(torch.backends.cuda.cudnn_sdp_enabled())  # type: ignore[no-untyped-call]


@pytest.fixture
def cudnn() -> Iterator[None]:
    before = uses_cudnn()
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.usefixtures("cudnn")
def test_a_gpu_never_uses_the_attention_of_cudnn() -> None:
    prepare_device("cpu", FakeGpus(1))
    assert uses_cudnn()
    prepare_device("cuda", FakeGpus(1))
    assert not uses_cudnn()


def test_a_missing_gpu_is_refused() -> None:
    with pytest.raises(ModelError, match="this process sees no GPU"):
        prepare_device("cuda", FakeGpus(0))
    prepare_device("cpu", FakeGpus(0))


@pytest.mark.parametrize(("rank", "number", "index"), [(0, 4, 0), (3, 4, 3), (3, 1, 0), (1, 8, 1)])
def test_a_rank_takes_its_own_gpu_or_the_only_one_that_it_sees(rank: int, number: int, index: int) -> None:
    gpus, environment = FakeGpus(number), dict[str, str]()
    assert take_gpu(rank, 4, gpus, environment) == f"GPU-{index}"
    assert gpus.current == index and environment == {"LOCAL_RANK": str(index)}


@pytest.mark.parametrize("number", [0, 2, 3])
def test_too_few_gpus_for_the_ranks_are_refused(number: int) -> None:
    with pytest.raises(ModelError, match=f"shards is 4: rank 0 sees {number} GPUs, must see 4"):
        take_gpu(0, 4, FakeGpus(number), {})


def test_two_ranks_with_one_gpu_are_refused() -> None:
    store, sharding = HashStore(), Sharding(shards=2, group_start_timeout_s=5.0)
    for own, other in (("GPU-0", "GPU-1"), ("", "")):
        store.set("rank-1", f"gpu {other}")
        join_all(store, 0, sharding, own)
    store.set("rank-1", "gpu GPU-0")
    with pytest.raises(ModelError, match="ranks 0 and 1 have the same GPU, GPU-0"):
        join_all(store, 0, sharding, "GPU-0")


def test_weights_are_created_on_the_gpu_unless_transformers_splits_them() -> None:
    assert device_map("cuda", 1) == {"": "cuda"}
    assert device_map("cuda", 2) is None
    assert device_map("cpu", 1) is None


def failed(code: int) -> torch.AcceleratorError:
    error = torch.AcceleratorError("CUDA error: an error of a kernel")
    error.error_code = code  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (failed(700), True),
        (failed(2), False),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), False),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), False),
    ],
)
async def test_only_an_error_that_lasts_ends_the_engine(
    model_folder: Callable[[str], Path], error: RuntimeError, is_lost: bool
) -> None:
    engine = ThreadEngine(failing_scorer(model_folder("llama"), error))
    await engine.start()
    failure = asyncio.create_task(engine.failure())
    first, second = await opened(engine, [1]), await opened(engine, [2])
    with pytest.raises(NotReady if is_lost else InternalError):
        await engine.run(first.score())
    if is_lost:
        await asyncio.wait_for(failure, 240)
    else:
        assert len((await engine.run(second.score())).choices) == 1
        assert not failure.done()
    failure.cancel()
    await engine.stop()


def failing_scorer(folder: Path, error: RuntimeError) -> HeadScorer:
    """Return a scorer whose first forward raises this error."""
    loaded = load_model(folder, "float32")
    forward, *_ = choose_forward(loaded, ContiguousKvCache(1024, 2), "cpu")
    info = ModelInfo(Role.TARGET, "m", "", "", "", loaded.vocab_size, 64, "float32", 1, 1024, "")
    return HeadScorer(TorchRunner(info, FailingOnce(forward, error), torch.device("cpu"), "", 0))


class FailingOnce:
    def __init__(self, forward: Forward, error: RuntimeError) -> None:
        self.kv_cache = forward.kv_cache
        self._forward = forward
        self._errors = [error]

    def __call__(self, batch: ForwardBatch) -> torch.Tensor:
        if self._errors:
            raise self._errors.pop()
        return self._forward(batch)
