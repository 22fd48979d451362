"""The device of a process, with GPUs that are fakes: settings, the GPU of a rank, lost devices."""

from collections.abc import Iterator

import pytest
import torch

from fly.errors import ModelError
from services.engine.loading.device import prepare_device


class FakeGpus:
    def __init__(self, number: int) -> None:
        self.number = number

    def is_available(self) -> bool:
        return self.number > 0


@pytest.fixture
def cudnn() -> Iterator[None]:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.usefixtures("cudnn")
def test_a_gpu_never_uses_the_attention_of_cudnn() -> None:
    prepare_device("cpu", FakeGpus(1))
    assert torch.backends.cuda.cudnn_sdp_enabled()
    prepare_device("cuda", FakeGpus(1))
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_a_missing_gpu_is_refused() -> None:
    with pytest.raises(ModelError, match="this process sees no GPU"):
        prepare_device("cuda", FakeGpus(0))
    prepare_device("cpu", FakeGpus(0))
