"""The time of the engine's forwards by context, sequences and rows."""

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.aligned_pair.recipe import PairRecipe, Shape
from benchmarks.scenarios.gpu.engine import load, new_slot, rows_of
from benchmarks.scenarios.gpu.plan import GPU, Case, Plan
from benchmarks.scenarios.gpu.results import ForwardTime, ForwardTimes
from benchmarks.scenarios.gpu.timing import Timer
from services.engine.base import ForwardInput
from services.engine.config import Dtype
from services.engine.forward.torch_runner import TorchRunner

_STEPS = 32
_KV_ITEM = 2
"""Bytes of a key's or value's number in bfloat16."""


def measure_forwards(plan: Plan, name: str, folder: Path, shape: Shape, timer: Timer) -> ForwardTimes:
    """Load a model and measure its forwards."""
    if plan.device == GPU:
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    growing = Case(plan.cases[0].context, 1, _STEPS)
    runner = load(folder, plan.device, Dtype.BFLOAT16, (*plan.cases, growing))
    load_s = time.perf_counter() - started
    times = [_measure_case(runner, case, shape, timer) for case in plan.cases]
    return ForwardTimes(
        model=model_name(name, plan.pair, shape),
        forward=runner.description,
        weight_bytes=runner.weight_bytes,
        load_s=load_s,
        memory_bytes=torch.cuda.max_memory_allocated() if plan.device == GPU else None,
        growing_s=_growing_s(runner, growing),
        times=times,
    )


def model_name(name: str, recipe: PairRecipe, shape: Shape) -> str:
    """Return a model's name with its number of parameters."""
    count = shape.num_parameters(recipe.vocab_size)
    return f"{name}, {count / 1e9:.1f}B" if count > 1e8 else f"{name}, {count / 1e6:.1f}M"


def kv_bytes(case: Case, shape: Shape) -> int:
    """Return the bytes of the keys and values that a case reads in all layers."""
    per_token = 2 * shape.layers * shape.kv_heads * (shape.hidden // shape.heads) * _KV_ITEM
    return case.sequences * (case.context + case.rows) * per_token


def _measure_case(runner: TorchRunner, case: Case, shape: Shape, timer: Timer) -> ForwardTime:
    # NOTE: the KV of the context is that of no text, but takes as long to read.
    slots = [new_slot(runner, case.context + case.rows) for _ in range(case.sequences)]
    ids = ids_of(case.rows)
    batch: Sequence[ForwardInput] = [rows_of(slot, ids, case.context) for slot in slots]
    forward_s = timer.median_s(lambda: runner.forward(batch))
    start_s = timer.start_s(lambda: runner.logits(batch))
    logits = runner.logits(batch)
    head_s = timer.median_s(lambda: runner.score(logits, batch))
    for slot in slots:
        runner.free(slot)
    return ForwardTime(case, kv_bytes(case, shape), forward_s, start_s, head_s)


def _growing_s(runner: TorchRunner, case: Case) -> float:
    """Return the mean time of a step that adds one of the case's rows."""
    slot = new_slot(runner, case.context + case.rows)
    start = time.perf_counter()
    for position, token in enumerate(ids_of(case.rows), start=case.context):
        runner.forward([rows_of(slot, [token], position)])
    seconds = time.perf_counter() - start
    runner.free(slot)
    return seconds / case.rows


def ids_of(count: int) -> list[int]:
    """Return the tokens of an input of so many rows."""
    return [1 + index % 100 for index in range(count)]
