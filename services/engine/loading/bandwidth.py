"""How near a replica comes to the limit that memory sets: decoding one token reads every weight once."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from fly.request import SamplingParams
from services.engine.base import Runner, Work

_PROBE_BYTES = 1 << 28
_PROBE_COLUMNS = 4096
_MOST_REPETITIONS = 8
_LEAST_REPETITIONS = 3
_PATIENCE_S = 0.2
"""A machine that is busy with other things is not held up any longer."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """What one decoding forward reads, and how fast.

    Attributes:
        weight_bytes: Weights read per forward, those of the embedding's rows left out.
        forward_s: Of one token of one sequence, its attention and head included.
        limit_bytes_per_s: At which the same threads read weights that are many times as large as a cache.
    """

    weight_bytes: int
    forward_s: float
    limit_bytes_per_s: float

    @property
    def achieved_bytes_per_s(self) -> float:
        return self.weight_bytes / self.forward_s

    @property
    def share(self) -> float:
        """Achieved by limit; above 1 where the weights stay in a cache."""
        return self.achieved_bytes_per_s / self.limit_bytes_per_s

    def describe(self) -> str:
        return (
            f"a forward reads {self.weight_bytes / 1e6:.1f} MB of weights in {self.forward_s * 1e3:.2f} ms:"
            f" {self.achieved_bytes_per_s / 1e9:.1f} of {self.limit_bytes_per_s / 1e9:.1f} GB/s"
            f" ({self.share:.0%})"
        )


def weight_bytes(model: nn.Module) -> int:
    """Bytes of weights that a forward of few tokens reads: all but embeddings that are no head as well."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    tables -= {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    return sum(
        weight.numel() * weight.element_size() for weight in model.parameters() if id(weight) not in tables
    )


def measure_limit(
    dtype: torch.dtype, device: torch.device | None = None, num_bytes: int = _PROBE_BYTES
) -> float:
    """Bytes per second at which torch's threads read weights: the best of the products that serve one token.

    Memory does not know types: where `dtype` is computed slowly, as bfloat16 is without instructions of its
    own, float32 shows the limit.
    """
    return max(_read_rate(kind, device or torch.device("cpu"), num_bytes) for kind in {dtype, torch.float32})


def measure_forward_s(runner: Runner) -> float:
    """Seconds for one token of one sequence, the least of several.

    Raises:
        RuntimeError: The runner has no free slot.
    """
    slot = runner.allocate(1)
    if slot is None:
        raise RuntimeError("no slot is free to measure a forward")
    work = Work(slot, 0, (0,), 1, SamplingParams(), prompt_length=1, history=(0,))
    try:
        return _least_s(lambda: runner.forward([work]))
    finally:
        runner.free(slot)


def _read_rate(dtype: torch.dtype, device: torch.device, num_bytes: int) -> float:
    columns = min(_PROBE_COLUMNS, num_bytes // dtype.itemsize)
    weight = torch.full((num_bytes // dtype.itemsize // columns, columns), 0.5, dtype=dtype, device=device)
    row = torch.ones(1, columns, dtype=dtype, device=device)

    def read() -> None:
        F.linear(row, weight)[0, 0].item()  # a device answers when it has finished

    return weight.numel() * dtype.itemsize / _least_s(read)


def _least_s(run: Callable[[], object]) -> float:
    """Of several runs, the first of which also warms up."""
    best, began = float("inf"), time.perf_counter()
    for repetition in range(_MOST_REPETITIONS):
        start = time.perf_counter()
        run()
        now = time.perf_counter()
        best = min(best, now - start)
        if repetition + 1 >= _LEAST_REPETITIONS and now - began > _PATIENCE_S:
            break
    return best
