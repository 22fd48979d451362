"""Parts of the fused forward: its residual stream, attention over many rows, number of operators."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flyserve.core.request import SamplingParams
from services.engine.base import ForwardInput
from services.engine.forward.forward_batch import ForwardBatch
from services.engine.forward.fused import FusedForward
from services.engine.forward.linears import PlainLinear
from services.engine.forward.residual import DoubledResidual, PlainResidual, RmsNorm
from services.engine.loading.model import load_model
from services.engine.memory.kv_cache import ContiguousKvCache, KvCache
from services.engine.memory.paged_kv_cache import PagedKvCache

FolderMaker = Callable[[str], Path]
OPERATORS_PER_LAYER = 23
"""Operators of one layer for one row: 4 linears, 4 of norms, 2 additions, 3 of the MLP, 10 of attention."""


class OperatorCount(TorchDispatchMode):
    """Counts the operators that are dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def sequence(kv_cache: KvCache, ids: list[int], num_outputs: int) -> ForwardInput:
    slot = kv_cache.allocate(len(ids))
    assert slot is not None
    return ForwardInput(slot, 0, ids, num_outputs, SamplingParams(), 0, ids)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [1, 4])
def test_doubled_rows_add_exactly_and_norm_as_plain_ones(dtype: torch.dtype, num_rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    rows, *added = (torch.randn(num_rows, 96, generator=generator).to(dtype) for _ in range(9))
    doubled, plain = DoubledResidual(rows.clone()), PlainResidual(rows.clone())
    norm = RmsNorm(torch.rand(96, generator=generator).to(dtype), 1e-5)
    for each in added:
        doubled.add(each)
        plain.add(each)
        assert torch.equal(doubled.rows, plain.rows)
        tolerance = 1e-6 if dtype is torch.float32 else 2e-2
        torch.testing.assert_close(
            doubled.normalized(norm), plain.normalized(norm), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("cache", [ContiguousKvCache, PagedKvCache])
@pytest.mark.parametrize("kind", ["llama", "llama_odd", "qwen2", "qwen3"])
def test_many_rows_equal_transformers(model_folder: FolderMaker, kind: str, cache: Any) -> None:
    model: Any = load_model(model_folder(kind), "float32").model
    kv_cache = cache(512, 4)
    forward = FusedForward(model, kv_cache, PlainLinear)
    texts = torch.randint(96, (3, 40), generator=torch.Generator().manual_seed(0))
    items = [sequence(kv_cache, text, 40) for text in texts.tolist()]
    with torch.inference_mode():
        computed = forward(ForwardBatch(items))
        expected = model(input_ids=texts, use_cache=False).logits.flatten(0, 1)
    torch.testing.assert_close(computed, expected, rtol=1e-4, atol=1e-4)


def test_a_decode_dispatches_few_operators(model_folder: FolderMaker) -> None:
    model: Any = load_model(model_folder("llama"), "float32").model
    layers = model.model.layers
    counts = []
    for num_layers in (1, len(layers)):
        model.model.layers = layers[:num_layers]
        forward = FusedForward(model, ContiguousKvCache(512, 4), PlainLinear)
        batch = ForwardBatch([sequence(forward.kv_cache, [1], 1)])
        with torch.inference_mode():
            forward(batch)  # allocates KV memory
            with OperatorCount() as operators:
                forward(batch)
        counts.append(operators.count)
    assert counts[1] - counts[0] == OPERATORS_PER_LAYER * (len(layers) - 1)
