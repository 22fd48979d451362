"""Measure memory bandwidth: decoding one token reads every weight once, so memory limits its speed."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from fly.messages import VERIFIED_TOKENS, ForwardCosts
from fly.request import SamplingParams
from services.engine.base import ForwardInput, Runner

_PROBE_BYTES = 1 << 28
_GPU_PRODUCTS = 16
_PROBE_COLUMNS = 4096
_MAX_REPETITIONS = 8
_MIN_REPETITIONS = 3
_MAX_MEASUREMENT_S = 0.2
"""Longest measurement on a busy machine, after `_MIN_REPETITIONS`."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes that one decoding forward reads, and their rate.

    Attributes:
        weight_bytes: Weights read per forward, without the rows of the embedding.
        forward_s: Seconds of a forward of one token of one sequence, including attention and head.
        limit_bytes_per_s: Rate at which the same threads read weights many times as large as a cache.
    """

    weight_bytes: int
    forward_s: float
    limit_bytes_per_s: float

    @property
    def achieved_bytes_per_s(self) -> float:
        return self.weight_bytes / self.forward_s

    @property
    def share(self) -> float:
        """Achieved rate divided by the limit; above 1 if the weights stay in a cache."""
        return self.achieved_bytes_per_s / self.limit_bytes_per_s

    def describe(self) -> str:
        return (
            f"a forward reads {self.weight_bytes / 1e6:.1f} MB of weights in {self.forward_s * 1e3:.2f} ms:"
            f" {self.achieved_bytes_per_s / 1e9:.1f} of {self.limit_bytes_per_s / 1e9:.1f} GB/s"
            f" ({self.share:.0%})"
        )


def weight_bytes(model: nn.Module) -> int:
    """Return the bytes of weights that a forward of few tokens reads: all but embeddings, unless tied."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    tables -= {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    return sum(
        weight.numel() * weight.element_size() for weight in model.parameters() if id(weight) not in tables
    )


def measure_limit(
    dtype: torch.dtype, device: torch.device | None = None, num_bytes: int = _PROBE_BYTES
) -> float:
    """Measure the bytes per second at which torch's threads read weights in matrix-vector products.

    Measures `dtype` and float32 and returns the larger rate: where `dtype` is computed slowly, as bfloat16
    without its instructions, float32 shows the limit of memory.
    """
    return max(_read_rate(kind, device or torch.device("cpu"), num_bytes) for kind in {dtype, torch.float32})


def measure_costs(runner: Runner) -> ForwardCosts:
    """Measure forwards of one sequence; raises what `measure_forward_s` raises."""
    return ForwardCosts(measure_forward_s(runner), measure_forward_s(runner, VERIFIED_TOKENS))


def measure_forward_s(runner: Runner, num_tokens: int = 1) -> float:
    """Measure the seconds for a forward of one sequence, the minimum of several runs.

    Raises:
        RuntimeError: The runner has no free slot.
    """
    slot = runner.allocate(num_tokens)
    if slot is None:
        raise RuntimeError("no slot is free to measure a forward")
    item = ForwardInput(
        slot=slot,
        start=0,
        tokens=(0,) * num_tokens,
        num_outputs=num_tokens,
        sampling=SamplingParams(),
        prompt_length=1,
        history=(0,) * num_tokens,
    )
    try:
        return _minimum_s(lambda: runner.forward([item]))
    finally:
        runner.free(slot)


def _read_rate(dtype: torch.dtype, device: torch.device, num_bytes: int) -> float:
    columns = min(_PROBE_COLUMNS, num_bytes // dtype.itemsize)
    weight = torch.full((num_bytes // dtype.itemsize // columns, columns), 0.5, dtype=dtype, device=device)
    row = torch.ones(1, columns, dtype=dtype, device=device)

    # A GPU takes some microseconds to start and to report: many products hide them.
    num_products = _GPU_PRODUCTS if device.type == "cuda" else 1

    def read() -> None:
        for _ in range(num_products):
            product = F.linear(row, weight)
        product[0, 0].item()  # waits until the device has finished

    return num_products * weight.numel() * dtype.itemsize / _minimum_s(read)


def _minimum_s(run: Callable[[], object]) -> float:
    """Return the seconds of the fastest of several runs; the first also warms up."""
    best, started = float("inf"), time.perf_counter()
    for repetition in range(_MAX_REPETITIONS):
        start = time.perf_counter()
        run()
        now = time.perf_counter()
        best = min(best, now - start)
        if repetition + 1 >= _MIN_REPETITIONS and now - started > _MAX_MEASUREMENT_S:
            break
    return best
