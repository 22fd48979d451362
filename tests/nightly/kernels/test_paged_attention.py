"""The kernel of paged attention: interpreted against plain torch in float64, and compiled for GPUs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fly.blocks import BLOCK_TOKENS
from fly.request import SamplingParams
from gpu_kernels.plain import plain_attention
from services.engine.base import ForwardInput
from services.engine.forward.attention import RaggedForward
from services.engine.forward.forward_batch import ForwardBatch
from services.engine.forward.fused import FusedForward
from services.engine.forward.linears import PlainLinear
from services.engine.loading.model import load_model
from services.engine.memory.kv_cache import ContiguousKvCache
from tests.nightly.kernels.triton_rig import TritonProcess, needs_triton

UNUSED = 10**6
"""Number of no block: reading it would fail."""
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}

pytestmark = needs_triton


@dataclass(frozen=True)
class Batch:
    """The arguments of `paged_attention` for a ragged batch; KV that no row may see is NaN."""

    query: Tensor
    keys: Tensor
    values: Tensor
    tables: Tensor
    contexts: Tensor
    starts: Tensor
    scale: float

    @property
    def arguments(self) -> tuple[Any, ...]:
        places = self.tables, self.contexts, self.starts
        return self.query, self.keys, self.values, *places, self.scale

    @property
    def expected_arguments(self) -> tuple[Any, ...]:
        places = self.tables, self.contexts, self.starts
        return self.query.double(), self.keys.double(), self.values.double(), *places, self.scale


def make(
    sequences: Sequence[tuple[int, int]],
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: torch.dtype = torch.float32,
    seed: int = 1,
) -> Batch:
    """Make a batch of sequences, each with its context and its number of rows."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [context + rows for context, rows in sequences]
    counts = [-(-length // BLOCK_TOKENS) for length in lengths]
    blocks = torch.randperm(sum(counts) + 2, generator=generator).int()
    tables = torch.full((len(sequences), max(counts) + 2), UNUSED, dtype=torch.int32)
    memory = torch.full((len(blocks) * BLOCK_TOKENS, 2, kv_heads, dim), torch.nan)
    for table, length, count, last in zip(tables, lengths, counts, accumulate(counts), strict=True):
        table[:count] = blocks[last - count : last]
        positions = torch.arange(length)
        stored = table[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
        memory[stored] = torch.randn(length, 2, kv_heads, dim, generator=generator)
    starts = [0, *accumulate(rows for _, rows in sequences)]
    projected = torch.randn(starts[-1], heads + 2 * kv_heads, dim, generator=generator) * 2
    return Batch(
        query=projected.to(dtype)[:, :heads],
        keys=memory.to(dtype)[:, 0],
        values=memory.to(dtype)[:, 1],
        tables=tables,
        contexts=torch.tensor([context for context, _ in sequences], dtype=torch.int32),
        starts=torch.tensor(starts, dtype=torch.int32),
        scale=dim**-0.5,
    )


def assert_attention(
    interpreted: TritonProcess, batch: Batch, splits: int | None = None, **options: Any
) -> None:
    computed = interpreted("paged_attention", *batch.arguments, splits=splits, **options)
    expected = plain_attention(*batch.expected_arguments, **options)
    tolerance = TOLERANCE[batch.query.dtype]
    assert computed.dtype is batch.query.dtype and expected.isfinite().all()
    torch.testing.assert_close(computed.double(), expected, rtol=tolerance, atol=tolerance)


RAGGED = [(0, 21), (37, 1), (16, 1), (150, 4), (0, 1)]


def test_capped_scores_and_sinks(interpreted: TritonProcess) -> None:
    batch, sinks = make(RAGGED, 4, 2, 16), torch.tensor([-3.0, 0.0, 1.0, 9.0])
    assert_attention(interpreted, batch, softcap=1.5)
    assert_attention(interpreted, batch, softcap=50.0, window=9)
    assert_attention(interpreted, batch, sinks=sinks)
    assert_attention(interpreted, batch, sinks=sinks, splits=4, window=40)


CONTEXT = st.integers(0, 90) | st.just(700)


@given(
    seed=st.integers(0, 2**32),
    sequences=st.lists(st.tuples(CONTEXT, st.integers(0, 24)), min_size=1, max_size=4),
    shape=st.sampled_from(
        [(1, 1, 16), (4, 1, 32), (6, 2, 16), (7, 1, 8), (20, 1, 16), (2, 2, 64), (8, 2, 80), (8, 1, 128)]
    ),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    window=st.none() | st.integers(1, 100),
    splits=st.sampled_from([1, 4, 16]),
)
@example(seed=1, sequences=RAGGED, shape=(8, 2, 64), dtype=torch.bfloat16, window=None, splits=4)
@example(seed=1, sequences=[(0, 90), (700, 4)], shape=(4, 2, 16), dtype=torch.float32, window=1, splits=1)
@settings(max_examples=20, deadline=None)
def test_any_ragged_batch(
    interpreted: TritonProcess,
    seed: int,
    sequences: list[tuple[int, int]],
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    window: int | None,
    splits: int,
) -> None:
    """A sequence may have no rows, or be so short that some splits are empty."""
    batch = make([*sequences, (1, 1)], *shape, dtype=dtype, seed=seed)
    assert_attention(interpreted, batch, splits, window=window)


def test_more_sequences_than_the_smallest_kernel_has_room_for(interpreted: TritonProcess) -> None:
    assert_attention(interpreted, make([(number % 19, 1 + number % 2) for number in range(70)], 2, 1, 16))


def test_rows_beyond_the_sequences_are_ignored(interpreted: TritonProcess) -> None:
    """As in a batch that is padded to a fixed shape: rows without a sequence, sequences without rows."""
    batch = make([(20, 3), (0, 0), (5, 2), (0, 0)], 2, 1, 16)
    padded = Batch(**{**vars(batch), "query": F.pad(batch.query, (0, 0, 0, 0, 0, 11))})
    computed = interpreted("paged_attention", *padded.arguments)
    assert computed.shape == (16, 2, 16)
    expected = plain_attention(*batch.expected_arguments)
    torch.testing.assert_close(computed[:5].double(), expected, rtol=2e-5, atol=2e-5)


def test_no_rows(interpreted: TritonProcess) -> None:
    assert interpreted("paged_attention", *make([(4, 0)], 2, 1, 16).arguments).shape == (0, 2, 16)


POINTERS = ("query", "keys", "values", "sinks")
PLACES = ("tables", "contexts", "starts")
NUMBERS = ("num_sequences", "num_rows", "window")
STRIDES = ("query", "query_head", "key", "key_head", "value", "value_head", "table")


@pytest.mark.parametrize(
    ("capability", "dtype", "dim", "queries", "splits", "has_options"),
    [
        (80, "bf16", 128, 64, 1, True),
        (80, "bf16", 80, 16, 4, False),
        (90, "bf16", 128, 64, 1, False),
        (90, "bf16", 256, 64, 1, True),
        (100, "bf16", 128, 16, 16, True),
        (80, "fp32", 256, 32, 1, False),
    ],
)
def test_the_kernel_compiles_for_gpus(
    compiling: TritonProcess,
    capability: int,
    dtype: str,
    dim: int,
    queries: int,
    splits: int,
    has_options: bool,
) -> None:
    """With window, cap and sinks or none of them, in the 99 KB of shared memory that a program may have."""
    padded, size = max(16, 1 << (dim - 1).bit_length()), 4 if dtype == "fp32" else 2
    positions, most_queries = compiling("tile_sizes", padded * size)
    assert queries in (16, most_queries)
    constants: dict[str, Any] = dict.fromkeys(("HAS_WINDOW", "HAS_CAP", "HAS_SINKS"), has_options)
    constants |= {"GROUP": 4, "DIM": dim, "PADDED_DIM": padded, "BLOCK_TOKENS": BLOCK_TOKENS}
    constants |= {"QUERIES": queries, "POSITIONS": positions, "SEQUENCES": 64, "SPLITS": splits}
    constants |= {} if has_options else {"sinks": None}
    constants |= {} if splits > 1 else {"weights": None}
    types = dict.fromkeys(POINTERS, f"*{dtype}") | dict.fromkeys(PLACES, "*i32")
    types |= {"output": f"*{dtype}" if splits == 1 else "*fp32", "weights": "*fp32"}
    types |= dict.fromkeys(NUMBERS, "i32") | {"scale": "fp32", "cap": "fp32"}
    types |= {f"{name}_stride": "i32" for name in STRIDES}
    types = {name: kind for name, kind in types.items() if name not in constants}
    arguments = "attention_kernels", "tile_kernel", types, constants, capability
    shared, ptx = compiling("compiled", *arguments, num_warps=4, num_stages=2)
    assert shared <= 99 * 1024
    assert ("wgmma.mma_async" in ptx) == (capability == 90), "Hopper has an instruction of its own"
    if dtype == "bf16":
        assert "mma" in ptx, "tensor cores multiply"
    if splits > 1:
        types = {"parts": "*fp32", "weights": "*fp32", "output": f"*{dtype}", "num_places": "i32"}
        constants = {"DIM": dim, "PADDED_DIM": padded, "SPLITS": splits}
        compiling("compiled", "attention_kernels", "merge_kernel", types, constants, capability, num_warps=4)


@pytest.mark.parametrize("kind", ["llama", "llama_odd", "qwen3", "gemma2", "gpt_oss"])
def test_a_model_computes_the_same_with_the_kernel(
    interpreted: TritonProcess, model_folder: Callable[[str], Path], kind: str
) -> None:
    """Prefills, then drafts after a rollback: windows, capped scores and sinks where the model has them."""
    generator = torch.Generator().manual_seed(4)
    texts = torch.randint(96, (3, 60), generator=generator).tolist()
    turns = [
        [item(0, texts[0], 0, 40), item(1, texts[1], 0, 7), item(2, texts[2], 0, 33)],
        [item(0, texts[0], 35, 44), item(2, texts[2], 33, 34), item(1, texts[1], 7, 60)],
    ]
    is_fused = kind.startswith("llama")
    computed = interpreted("model_logits", model_folder(kind), is_fused, turns)
    model: Any = load_model(model_folder(kind), "float32").model
    kv_cache = ContiguousKvCache(1024, 8)
    forward = FusedForward(model, kv_cache, PlainLinear) if is_fused else RaggedForward(model, kv_cache)
    for _ in turns[-1]:
        kv_cache.allocate(60)
    with torch.inference_mode():
        for turn, logits in zip(turns, computed, strict=True):
            torch.testing.assert_close(logits, forward(ForwardBatch(turn)), rtol=2e-4, atol=2e-4)


def item(slot: int, text: list[int], start: int, end: int) -> ForwardInput:
    return ForwardInput(slot, start, text[start:end], end - start, SamplingParams(), 0, text)
