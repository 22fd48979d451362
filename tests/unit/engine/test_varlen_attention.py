"""One call for all sequences gives each the attention that it has by itself."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flyserve.core.request import SamplingParams
from services.engine.base import ForwardInput
from services.engine.forward import varlen_attention
from services.engine.forward.attention import SequentialAttention
from services.engine.forward.choice import choose_forward
from services.engine.forward.forward_batch import ForwardBatch
from services.engine.forward.varlen_attention import VarlenAttention
from services.engine.loading.model import load_model
from services.engine.memory.paged_kv_cache import PagedKvCache

HEADS, KV_HEADS, DIM, LAYERS = 4, 2, 8, 2

Turn = list[tuple[int, int]]
"""The sequence and the number of new rows of each item of a batch."""
TURNS = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20)), min_size=1, unique_by=lambda pair: pair[0]),
    min_size=1,
    max_size=4,
)


def kernel(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    query_ends: Tensor,
    key_ends: Tensor,
    most_rows: int,
    most_keys: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
    num_splits: int,
) -> Tensor:
    """Attend as torch documents it of its kernel, which runs on GPUs alone."""
    parts, (before, after) = list[Tensor](), window_size
    assert (after, num_splits, enable_gqa) == (0, 1, True) and query_ends.dtype == torch.int32
    spans = zip(pairwise(query_ends.tolist()), pairwise(key_ends.tolist()), strict=True)
    for (first, last), (start, end) in spans:
        rows, length = last - first, end - start
        assert rows <= most_rows and length <= most_keys and most_rows > 1
        distance = torch.arange(length - rows, length)[:, None] - torch.arange(length)
        mask = (distance >= 0) & ((distance <= before) | (before < 0))
        query, key, value = (
            each.transpose(0, 1)[None] for each in (queries[first:last], keys[start:end], values[start:end])
        )
        found = F.scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=True)
        parts.append(found[0].transpose(0, 1))
    return torch.cat(parts)


def attended(turns: list[Turn], attention: Any, dtype: torch.dtype, **options: Any) -> list[Tensor]:
    """Return the results of all turns and layers, in a memory of their own."""
    generator, kv_cache, results = torch.Generator().manual_seed(0), PagedKvCache(512, 4), []
    slots = [kv_cache.allocate(0) for _ in range(4)]
    lengths = [0] * 4
    for turn in turns:
        inputs = []
        for index, rows in turn:
            assert kv_cache.resize(slots[index], lengths[index] + rows, lengths[index])
            inputs.append(ForwardInput(slots[index], lengths[index], [0] * rows, 0, SamplingParams(), 0, ()))
            lengths[index] += rows
        batch = ForwardBatch(inputs)
        attend = attention(batch, kv_cache)
        for layer in range(LAYERS):
            queries = torch.randn(batch.num_tokens, HEADS, DIM, generator=generator).to(dtype)
            new = torch.randn(batch.num_tokens, 2, KV_HEADS, DIM, generator=generator).to(dtype)
            results.append(attend(layer, queries, new, **options))
    return results


def varlen(batch: ForwardBatch, kv_cache: PagedKvCache) -> VarlenAttention:
    return VarlenAttention(batch, kv_cache, kernel)


@settings(max_examples=30)
@given(turns=TURNS, keys=st.sampled_from([65_536, 24]), window=st.sampled_from([None, 5]))
def test_each_sequence_has_the_attention_that_it_has_alone(
    turns: list[Turn], keys: int, window: int | None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(varlen_attention, "_KEYS", keys)
        found = attended(turns, varlen, torch.bfloat16, window=window, scaling=0.3)
    expected = attended(turns, SequentialAttention, torch.bfloat16, window=window, scaling=0.3)
    assert all(torch.allclose(*pair, atol=0.03) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize(("dtype", "options"), [(torch.float32, {}), (torch.bfloat16, {"softcap": 20.0})])
def test_what_the_kernel_does_not_know_is_computed_one_by_one(
    dtype: torch.dtype, options: dict[str, Any]
) -> None:
    turns = [[(0, 7), (1, 1)], [(1, 3), (0, 1)]]
    found, expected = (attended(turns, each, dtype, **options) for each in (varlen, SequentialAttention))
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize("is_invariant", [True, False])
def test_a_gpus_forward_is_row_invariant_where_its_library_can_be(
    monkeypatch: pytest.MonkeyPatch, model_folder: Callable[[str], Path], is_invariant: bool
) -> None:
    multiply = F.linear

    def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply as a library whose sums of fewer than 64 rows have another order."""
        result = multiply(rows.double(), weight.double()) * (1.05 if len(rows) < 64 else 1.0)
        return result.to(rows.dtype)

    def exact(queries: Tensor, keys: Tensor, values: Tensor, *rest: Any, **options: Any) -> Tensor:
        found = kernel(queries.double(), keys.double(), values.double(), *rest, **options)
        return found.to(queries.dtype)

    loaded = load_model(model_folder("llama"), "bfloat16")
    monkeypatch.setattr(F, "linear", linear)
    monkeypatch.setattr(
        "services.engine.forward.fused.make_attention",
        lambda batch, kv_cache: VarlenAttention(batch, kv_cache, exact),
    )
    monkeypatch.setattr("services.engine.forward.choice.agrees", lambda *_: True)
    chosen = choose_forward(loaded, PagedKvCache(512, 4), "cuda", is_invariant=is_invariant)
    assert ("shapes row-invariant" in chosen.description) == is_invariant
    assert chosen.rows.check().fault == ("" if is_invariant else "attention")
