"""The device of a process and its settings."""

from typing import Protocol

import torch

from fly.errors import ModelError

_OUT_OF_MEMORY = 2
"""CUDA's code of an allocation that failed, after which the device goes on."""
_LOST = ("STATUS_EXECUTION_FAILED", "STATUS_INTERNAL_ERROR", "STATUS_MAPPING_ERROR")
"""States of cuBLAS and cuDNN after a failure of the device; torch has no type for them."""


class Gpus(Protocol):
    """The GPUs that this process sees; `torch.cuda` is one."""

    def is_available(self) -> bool:
        """Check that there is at least one."""


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


def is_device_lost(error: RuntimeError) -> bool:
    """Check that an error of a forward makes every later one fail as well, in this process."""
    if isinstance(error, torch.AcceleratorError):
        return getattr(error, "error_code", None) != _OUT_OF_MEMORY
    return any(state in str(error) for state in _LOST)
