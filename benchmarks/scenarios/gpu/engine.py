"""The engine's runner of a model on a device, and inputs of its forwards."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.scenarios.gpu.plan import GPU, Case
from fly.messages import Role
from fly.request import SamplingParams
from services.engine.base import ForwardInput, KvSlot
from services.engine.config import Dtype, ModelConfig
from services.engine.forward.torch_runner import Parts, TorchRunner, load_runner

_BLOCK = 32
"""Positions beyond its tokens that every sequence gets: memory is given in blocks."""


def load(
    folder: Path, device: str, dtype: Dtype, cases: Sequence[Case], parts: Parts | None = None
) -> TorchRunner:
    """Return a runner with room for each of the cases, one at a time; `parts` replace those of torch."""
    return load_runner(
        ModelConfig(
            role=Role.TARGET,
            model=folder,
            dtype=dtype,
            device="cuda" if device == GPU else "cpu",
            max_sequences=max(case.sequences for case in cases),
            kv_tokens=max(case.sequences * (case.context + case.rows + _BLOCK) for case in cases),
        ),
        parts=parts,
    )


def new_slot(runner: TorchRunner, num_tokens: int) -> KvSlot:
    """Return a slot with room for a sequence."""
    slot = runner.allocate(num_tokens)
    assert slot is not None, "the runner was loaded with room for every sequence"
    return slot


def rows_of(slot: KvSlot, ids: Sequence[int], start: int, num_outputs: int | None = None) -> ForwardInput:
    """Return the input that computes `ids` from position `start` on; the head scores all or the last rows."""
    outputs = len(ids) if num_outputs is None else num_outputs
    return ForwardInput(slot, start, ids, outputs, SamplingParams(), 0, ())
