"""Probe of the machine: its GPU and driver, and what attention costs at a length that is new."""

import shutil
import subprocess
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from benchmarks.scenarios.gpu.plan import GPU
from benchmarks.scenarios.gpu.results import AttentionCost, GpuFacts, Probe
from benchmarks.scenarios.gpu.timing import Timer

_HEADS, _KV_HEADS, _DIM = 32, 8, 128
_FIRST_LENGTH, _LENGTHS = 801, 8
_QUERY_TIMEOUT_S = 30.0


def probe(device: str, timer: Timer) -> Probe:
    """Return the facts of this machine."""
    if device != GPU:
        return Probe(None, [_attention(rows, None, device, timer) for rows in (1, 16)])
    was_enabled = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    try:
        costs = [_attention(rows, cudnn, device, timer) for rows in (1, 16) for cudnn in (False, True)]
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was_enabled)
    return Probe(_gpu_facts(), costs)


def _gpu_facts() -> GpuFacts:
    properties = torch.cuda.get_device_properties(0)
    return GpuFacts(
        name=properties.name,
        memory_bytes=properties.total_memory,
        multiprocessors=properties.multi_processor_count,
        driver=_driver(),
        cuda=str(torch.version.cuda),
        cudnn=str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        nccl=".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call]
    )


def _driver() -> str:
    """Return the version of the driver as its own tool reports it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown (no nvidia-smi)"
    query = (tool, "--query-gpu=driver_version", "--format=csv,noheader")
    done = subprocess.run(query, capture_output=True, text=True, timeout=_QUERY_TIMEOUT_S, check=False)
    return done.stdout.split("\n")[0].strip() or "unknown"


def _attention(rows: int, cudnn: bool | None, device: str, timer: Timer) -> AttentionCost:
    if cudnn is not None:
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
    lengths = range(_FIRST_LENGTH, _FIRST_LENGTH + _LENGTHS)
    firsts = [timer.once_s(_call(rows, length, device)) for length in lengths]
    again = timer.median_s(_call(rows, lengths[-1], device))
    return AttentionCost(rows, cudnn, median(firsts), again)


def _call(rows: int, length: int, device: str) -> Callable[[], Tensor]:
    """Return a call of attention with the layouts of the engine's fused forward."""
    memory = torch.randn(length, 2, 1, _KV_HEADS, _DIM, device=device, dtype=torch.bfloat16)
    keys, values = memory.permute(1, 2, 3, 0, 4)
    if rows == 1:  # the queries of a KV head are rows of one product
        queries = torch.randn(1, _KV_HEADS, _HEADS // _KV_HEADS, _DIM, device=device, dtype=torch.bfloat16)
        return lambda: F.scaled_dot_product_attention(queries, keys, values)
    queries = torch.randn(1, _HEADS, rows, _DIM, device=device, dtype=torch.bfloat16)
    bias = causal_lower_right(rows, length)
    return lambda: F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, enable_gqa=True)
