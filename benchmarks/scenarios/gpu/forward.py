"""The engine's forwards on a device."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.aligned_pair.recipe import PairRecipe, Shape
from benchmarks.scenarios.gpu.plan import CPU, GPU, Case, Plan
from benchmarks.scenarios.gpu.results import ForwardTime
from benchmarks.scenarios.gpu.timing import Timer
from flyserve.core.messages import Role
from flyserve.core.request import SamplingParams
from services.engine.base import ForwardInput, KvAllocator, KvSlot
from services.engine.config import Dtype, ModelConfig
from services.engine.forward.padding import KEY_BLOCK
from services.engine.forward.torch_runner import TorchRunner, load_runner
from services.engine.head.head_scorer import HeadScorer

_BEYOND = {GPU: 32, CPU: KEY_BLOCK}
"""Positions beyond its tokens that a sequence may get: memory is given in blocks, on a CPU of keys."""
_KV_ITEM = 2
"""Bytes of a key's or value's number in bfloat16."""


def load(folder: Path, device: str, dtype: Dtype, cases: Sequence[Case]) -> TorchRunner:
    """Return a runner with room for each of the cases, one at a time."""
    return load_runner(
        ModelConfig(
            role=Role.TARGET,
            model=folder,
            dtype=dtype,
            device="cuda" if device == GPU else "cpu",
            max_sequences=max(case.sequences for case in cases),
            kv_tokens=max(case.sequences * (case.context + case.rows + _BEYOND[device]) for case in cases),
        ),
    )


def new_slot(runner: KvAllocator, num_tokens: int) -> KvSlot:
    """Return a slot with room for a sequence."""
    slot = runner.allocate(num_tokens)
    assert slot is not None, "the runner was loaded with room for every sequence"
    return slot


def rows_of(slot: KvSlot, ids: Sequence[int], start: int, num_outputs: int | None = None) -> ForwardInput:
    """Return the input that computes `ids` from position `start` on; the head scores all or the last rows."""
    outputs = len(ids) if num_outputs is None else num_outputs
    return ForwardInput(slot, start, ids, outputs, SamplingParams(), 0, ())


def measure_forwards(plan: Plan, name: str, folder: Path, shape: Shape, timer: Timer) -> list[ForwardTime]:
    """Load a model and measure its forwards."""
    runner = load(folder, plan.device, Dtype.BFLOAT16, plan.cases)
    model = model_name(name, plan.pair, shape)

    def measure(case: Case) -> ForwardTime:
        times = _measure_case(runner, case, timer)
        return ForwardTime(model, case, runner.weight_bytes, kv_bytes(case, shape), *times)

    return [measure(case) for case in plan.cases]


def _measure_case(runner: TorchRunner, case: Case, timer: Timer) -> tuple[float, float]:
    """Return the seconds of a forward with its head, and those until the host has started its work."""
    # NOTE: the KV of the context is that of no text, but takes as long to read.
    slots = [new_slot(runner, case.context + case.rows) for _ in range(case.sequences)]
    ids = [1 + index % 100 for index in range(case.rows)]
    batch = [rows_of(slot, ids, case.context) for slot in slots]
    forward_s = timer.median_s(partial(HeadScorer(runner).forward, batch))
    start_s = timer.start_s(partial(runner.logits, batch))
    for slot in slots:
        runner.free(slot)
    return forward_s, start_s


def model_name(name: str, recipe: PairRecipe, shape: Shape) -> str:
    """Return a model's name with its number of parameters."""
    count = shape.num_parameters(recipe.vocab_size)
    return f"{name}, {count / 1e9:.1f}B" if count > 1e8 else f"{name}, {count / 1e6:.1f}M"


def kv_bytes(case: Case, shape: Shape) -> int:
    """Return the bytes of the keys and values that a case reads in all layers."""
    per_token = 2 * shape.layers * shape.kv_heads * (shape.hidden // shape.heads) * _KV_ITEM
    return case.sequences * (case.context + case.rows) * per_token
