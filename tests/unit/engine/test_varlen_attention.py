"""One call for all sequences gives each the attention that it has by itself."""

from itertools import pairwise
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
from services.engine.forward.forward_batch import ForwardBatch
from services.engine.forward.varlen_attention import VarlenAttention
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
    parts, (before, after) = [], window_size
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


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("keys", [65_536, 24])
@settings(max_examples=25)
@given(turns=TURNS)
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
