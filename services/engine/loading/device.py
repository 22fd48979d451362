"""The device of a process: its settings, and the GPU that a rank of a shared model takes."""

import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from flyserve.core.errors import ModelError
from services.engine.base import RunnerLost

_OUT_OF_MEMORY = 2
"""CUDA's code of an allocation that failed, after which the device goes on."""
_LOST = ("STATUS_EXECUTION_FAILED", "STATUS_INTERNAL_ERROR", "STATUS_MAPPING_ERROR")
"""States of cuBLAS and cuDNN after a failure of the device; torch has no type for them."""


class Gpus(Protocol):
    """The GPUs that this process sees; `torch.cuda` is one."""

    def is_available(self) -> bool:
        """Check that there is at least one."""

    def device_count(self) -> int:
        """Return their number."""

    def set_device(self, device: int) -> None:
        """Make one of them the current GPU of this process."""

    def get_device_properties(self, device: int) -> Any:
        """Return the properties of one, such as its `uuid`."""


def prepare_device(device: str, gpus: Gpus = torch.cuda) -> None:
    """Check that the device is there, and choose the kernels of its attention.

    Raises:
        ModelError: The device is a GPU, and this process sees none.
    """
    if device != "cuda":
        return
    if not gpus.is_available():
        raise ModelError("device is cuda, but this process sees no GPU: use device cpu, or assign a GPU")
    # NOTE: cuDNN plans its attention for each length of the KV memory, which differs at every step, and keeps
    # all plans.
    torch.backends.cuda.enable_cudnn_sdp(False)


def take_gpu(
    rank: int, shards: int, gpus: Gpus = torch.cuda, environment: MutableMapping[str, str] = os.environ
) -> str:
    """Make a GPU the current one of this rank: the only one that it sees, else that of its rank.

    Returns:
        The identity of the GPU, which no other rank may have.

    Raises:
        ModelError: This process sees fewer GPUs than there are ranks, but more than one, or none.
    """
    number = gpus.device_count()
    if number != 1 and number < shards:
        raise ModelError(
            f"shards is {shards}: rank {rank} sees {number} GPUs, must see {shards}, or only the one that it"
            " uses (CUDA_VISIBLE_DEVICES)"
        )
    index = 0 if number == 1 else rank
    environment["LOCAL_RANK"] = str(index)  # transformers reads it, and makes this GPU the current one again
    gpus.set_device(index)
    return str(gpus.get_device_properties(index).uuid)


def is_device_lost(error: RuntimeError) -> bool:
    """Check that an error of a forward makes every later one fail as well, in this process."""
    if isinstance(error, torch.AcceleratorError):
        return getattr(error, "error_code", None) != _OUT_OF_MEMORY
    return any(state in str(error) for state in _LOST)


@contextmanager
def lost_with_device() -> Iterator[None]:
    """Raise `RunnerLost` for an error of the device: all later operations on it would fail as well."""
    try:
        yield
    except RuntimeError as error:
        if not is_device_lost(error):
            raise
        raise RunnerLost(f"the device failed: {error}") from error
