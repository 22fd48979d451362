"""Rows 1 to 64 at contexts 1 to 4,096, in the shapes of real models, and linears of any shape: equal bits."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.config import Dtype, Quantization
from services.engine.forward.int8 import Int8Maker
from services.engine.forward.proven import ProvenMaker
from tests.support.long_contexts import PLACES, LongContext, Rows


def sizes(heads: int, kv_heads: int, dim: int, hidden: int, **others: int) -> dict[str, Any]:
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "hidden_size": hidden,
        "num_hidden_layers": 1,
        **others,
    }


LAYERS = ["sliding_attention", "full_attention"]
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "SmolLM2-135M": ("llama", sizes(9, 3, 64, 576, intermediate_size=1536)),
    "Qwen2.5-0.5B": (
        "qwen2",
        sizes(14, 2, 64, 896, intermediate_size=4864) | {"layer_types": ["full_attention"]},
    ),
    "heads of Llama-3.1-8B": ("llama", sizes(32, 8, 128, 512, intermediate_size=700)),
    "heads of Gemma-2-2B": (
        "gemma2",
        sizes(8, 4, 256, 256, intermediate_size=304) | {"num_hidden_layers": 2, "layer_types": LAYERS},
    ),
    "heads of gpt-oss-20b": (
        "gpt_oss",
        sizes(64, 8, 64, 96, sliding_window=128) | {"num_hidden_layers": 2, "layer_types": LAYERS},
    ),
    "experts": ("mixtral", sizes(8, 4, 32, 128, intermediate_size=224)),
}
MODES = [
    (Dtype.FLOAT32, Quantization.NONE),
    (Dtype.BFLOAT16, Quantization.NONE),
    (Dtype.BFLOAT16, Quantization.INT8),
]
CASES = [(name, *mode) for name in MODELS for mode in MODES]


@cache
def context(folder: Path, name: str, dtype: Dtype, quantization: Quantization) -> LongContext:
    kind, changes = MODELS[name]
    return LongContext(folder, kind, dtype, quantization, **changes)


@pytest.mark.parametrize(("name", "dtype", "quantization"), CASES)
@given(places=PLACES)
@settings(max_examples=60)
def test_rows_at_any_places_have_the_same_bits(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    dtype: Dtype,
    quantization: Quantization,
    places: list[Rows],
) -> None:
    folder = tmp_path_factory.getbasetemp() / name.replace(" ", "-")
    assert context(folder, name, dtype, quantization).has_equal_bits(places)


@pytest.mark.parametrize("is_int8", [False, True])
@given(
    shape=st.tuples(st.integers(1, 2048), st.integers(1, 4096)),
    dtypes=st.sampled_from([(torch.float32, None), (torch.bfloat16, torch.float32), (torch.bfloat16, None)]),
    counts=st.lists(st.integers(1, 64), min_size=4, max_size=8),
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
def test_a_linear_of_any_shape_gives_a_row_the_same_bits_in_any_number_of_rows(
    is_int8: bool,
    shape: tuple[int, int],
    dtypes: tuple[torch.dtype, torch.dtype | None],
    counts: list[int],
    seed: int,
) -> None:
    generator, (dtype, rows_dtype) = torch.Generator().manual_seed(seed), dtypes
    weight = (torch.randn(shape, generator=generator) * shape[1] ** -0.5).to(dtype)
    maker = ProvenMaker(rows_dtype)
    linear = (Int8Maker(maker) if is_int8 else maker)(weight)
    rows = torch.randn(sum(counts), shape[1], generator=generator).to(rows_dtype or dtype)
    parts = [linear(part).clone() for part in rows.split(counts)]
    assert torch.equal(torch.cat(parts), linear(rows))
