"""Integers that describe a forward, copied to the device at once, to the same addresses for equal shapes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

IntArray = np.ndarray[Any, np.dtype[np.int64]]


class PlanBuffer:
    """Device memory for a forward's indices: token ids, positions, rows of KV memory.

    On a GPU, addresses stay the same while shapes do, which captured kernels (CUDA graphs) need: what it
    returns is overwritten by the next forward that is described under the same key.
    """

    def __init__(self, device: torch.device | None = None, is_static: bool | None = None) -> None:
        """Make an empty buffer on a device, by default the CPU; `is_static` is true on a GPU by default."""
        self.device = device or torch.device("cpu")
        self._is_static = self.device.type != "cpu" if is_static is None else is_static
        self._memory: dict[object, Tensor] = {}

    def place(self, key: object, values: Tensor) -> Tensor:
        """Copy integers from the CPU to the device, (number,), int64."""
        if not self._is_static:
            return values.to(self.device)
        memory = self._memory.get(key)
        if memory is None or len(memory) < len(values):
            size = 1 << max(0, len(values) - 1).bit_length()
            memory = self._memory[key] = torch.empty(size, dtype=torch.long, device=self.device)
        return memory[: len(values)].copy_(values)

    def upload(self, key: object, arrays: Sequence[IntArray]) -> list[Tensor]:
        """Copy integers to the device in one transfer; return them as tensors of the same shapes, int64."""
        placed = self.place(key, torch.from_numpy(np.concatenate([array.ravel() for array in arrays])))
        parts = placed.split_with_sizes([array.size for array in arrays])
        return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]
