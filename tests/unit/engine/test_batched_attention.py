"""Attention of all sequences at once over paged memory: few operators, bounded reads, no foreign data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fly.request import SamplingParams
from services.engine.base import ForwardInput
from services.engine.forward.attention import RaggedForward
from services.engine.forward.forward_batch import ForwardBatch, SequenceRows
from services.engine.forward.fused import FusedForward
from services.engine.forward.group_attention import GroupPlan
from services.engine.forward.linears import PlainLinear
from services.engine.forward.plan_buffer import PlanBuffer
from services.engine.loading.model import load_model
from services.engine.memory.kv_cache import ContiguousKvCache
from services.engine.memory.paged_kv_cache import PagedKvCache
from tests.support.operators import operators_of_forward

FolderMaker = Callable[[str], Path]
LAYERS = 32
"""Layers of a model with 8 billion weights."""


@pytest.mark.parametrize(
    ("kind", "sequences", "num_rows", "most"),
    [
        ("fused", 64, 16, 6000),  # 131,077 before, with a call per sequence
        ("fused", 64, 1, 6000),
        ("fused", 1, 1, 6000),  # the norm is one operator on a GPU, and many here
        ("ragged", 64, 16, 9000),
    ],
)
def test_a_forward_of_many_sequences_takes_few_operators(
    kind: str, sequences: int, num_rows: int, most: int
) -> None:
    kv_cache = PagedKvCache(80 * sequences, sequences)
    starts = [32 + index % 9 for index in range(sequences)]
    assert operators_of_forward(kind, kv_cache, LAYERS, num_rows, starts) < most


@pytest.mark.parametrize("kind", ["llama", "llama_odd", "qwen3", "gemma2", "gpt_oss"])
def test_what_others_left_in_a_block_is_not_read(model_folder: FolderMaker, kind: str) -> None:
    model: Any = load_model(model_folder(kind), "float32").model
    kv_cache = PagedKvCache(160, 4)
    is_fused = kind.startswith("llama")
    forward = FusedForward(model, kv_cache, PlainLinear) if is_fused else RaggedForward(model, kv_cache)
    texts = torch.randint(96, (2, 20), generator=torch.Generator().manual_seed(0)).tolist()

    def logits() -> torch.Tensor:
        slots = [kv_cache.allocate(20), kv_cache.allocate(9)]
        assert slots[0] is not None and slots[1] is not None
        items = [
            ForwardInput(slots[0], 0, texts[0], 20, SamplingParams(), 0, texts[0]),
            ForwardInput(slots[1], 0, texts[1][:9], 9, SamplingParams(), 0, texts[1]),
        ]
        computed = forward(ForwardBatch(items))
        kv_cache.free(slots[0])
        kv_cache.free(slots[1])
        return computed

    with torch.inference_mode():
        expected = logits()
        for layer in range(model.config.num_hidden_layers):
            memory = kv_cache.layer(layer, torch.empty(0))
            memory.fill_(float("nan"))
        assert torch.equal(logits(), expected)


def test_a_window_reads_only_the_blocks_that_it_reaches() -> None:
    rows = SequenceRows(slot=0, start=131_000, num_rows=4, offset=0)
    plan = GroupPlan([rows], [np.arange(8192)], 512)
    assert 512 + 3 <= plan.length <= 512 + 3 + 16
    blocks, lengths, starts, _ = plan.arrays
    assert blocks[0, 0] == (131_000 - 511) // 16 * 16
    assert lengths[0] - starts[0] == 4


def test_a_short_sequence_needs_no_window() -> None:
    rows = SequenceRows(slot=0, start=500, num_rows=4, offset=0)
    assert GroupPlan([rows], [np.arange(32)], 504).window is None
    assert GroupPlan([rows], [np.arange(32)], 503).window == 503


def test_plans_of_equal_shapes_are_at_equal_addresses() -> None:
    buffer = PlanBuffer(is_static=True)
    first = buffer.upload("a", [np.arange(5), np.ones((2, 3), dtype=np.int64)])
    addresses = [part.data_ptr() for part in first]
    other = buffer.upload("b", [np.zeros(100, dtype=np.int64)])
    second = buffer.upload("a", [np.arange(5, 10), np.zeros((2, 3), dtype=np.int64)])
    assert [part.data_ptr() for part in second] == addresses
    assert second[0].tolist() == [5, 6, 7, 8, 9] and second[1].shape == (2, 3)
    assert not other[0].any()


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_prefills_and_decodes_share_a_forward(model_folder: FolderMaker, kind: str) -> None:
    """Sequences with many rows attend alone, the others together, out of order."""
    computed = []
    for kv_cache in (ContiguousKvCache(4096, 8), PagedKvCache(4096, 8)):
        model: Any = load_model(model_folder(kind), "float32").model
        fused = kind == "llama"
        forward = FusedForward(model, kv_cache, PlainLinear) if fused else RaggedForward(model, kv_cache)
        generator = torch.Generator().manual_seed(3)
        items = []
        for start, rows in ((10, 1), (0, 40), (30, 3), (0, 2), (5, 1)):
            text = torch.randint(96, (start + rows,), generator=generator).tolist()
            slot = kv_cache.allocate(start + rows)
            assert slot is not None
            with torch.inference_mode():
                if start:
                    before = ForwardInput(slot, 0, text[:start], 0, SamplingParams(), 0, text)
                    forward(ForwardBatch([before]))
            items.append(ForwardInput(slot, start, text[start:], rows, SamplingParams(), 0, text))
        with torch.inference_mode():
            computed.append(forward(ForwardBatch(items)))
    torch.testing.assert_close(computed[1], computed[0], rtol=1e-5, atol=1e-5)
