"""Ragged and fused forwards against a plain full forward of transformers, with random rollback."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention.bias import CausalBias
from transformers import LlamaForCausalLM

from flyserve.core.messages import Role
from flyserve.core.request import SamplingParams
from services.engine.base import ForwardInput
from services.engine.config import ModelConfig
from services.engine.forward import choice as forward_choice
from services.engine.forward import torch_runner
from services.engine.forward.forward_batch import ForwardBatch
from services.engine.forward.fused import FusedForward, can_fuse
from services.engine.forward.linears import (
    CastLinear,
    HalfLinear,
    Linear,
    PlainLinear,
    RowCountLinear,
)
from services.engine.forward.packed import (
    HALF,
    PACKED,
    PLAIN,
    WIDENED,
    LinearChoice,
    LinearKind,
    LinearMaker,
    linear_kinds,
    pack_model,
)
from services.engine.forward.ragged import RaggedForward
from services.engine.loading.model import load_model
from services.engine.memory.kv_cache import ContiguousKvCache
from tests.support.tiny_models import make_tiny

FolderMaker = Callable[[str], Path]
KINDS = ["llama", "llama_odd", "qwen2", "qwen3", "mistral", "mistral_full", "gpt2"]
FUSED = ["llama", "llama_odd", "qwen2", "qwen3", "mistral_full"]


def full_logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return logits


def random_session(
    forward: Any, kv_cache: ContiguousKvCache, reference: Any, seed: int, uses_bias: bool | None = None
) -> float:
    """Grow, roll back and change three sequences at random; return the largest relative error of a logit."""
    draw = random.Random(seed)
    slots = [kv_cache.allocate(1) for _ in range(3)]
    known: list[list[int]] = [[], [], []]
    error = 0.0
    for _ in range(12):
        batch = []
        for index in draw.sample(range(3), draw.randint(1, 3)):
            keep = draw.randint(max(0, len(known[index]) - 6), len(known[index]))
            added = [draw.randrange(96) for _ in range(draw.randint(1, min(9, 60 - keep)))]
            known[index] = known[index][:keep] + added
            slot = slots[index]
            assert slot is not None and kv_cache.resize(slot, len(known[index]))
            outputs = draw.randint(0, len(added))
            batch.append((index, ForwardInput(slot, keep, added, outputs, SamplingParams(), 0, known[index])))
        with torch.inference_mode():
            logits = forward(ForwardBatch([item for _, item in batch], uses_bias=uses_bias))
        expected = [
            full_logits(reference, known[index])[len(known[index]) - item.num_outputs :]
            for index, item in batch
        ]
        wanted = torch.cat(expected)
        assert logits.shape == wanted.shape
        if len(wanted):
            error = max(error, ((logits - wanted).abs().max() / wanted.abs().max()).item())
    for slot in slots:
        assert slot is not None
        kv_cache.free(slot)
    return error


@pytest.mark.parametrize("kind", [*KINDS, "gemma2", "gpt_oss"])
def test_a_causal_bias_in_place_of_a_mask_changes_nothing(model_folder: FolderMaker, kind: str) -> None:
    reference = load_model(model_folder(kind), "float32").model
    model, kv_cache = load_model(model_folder(kind), "float32").model, ContiguousKvCache(512, 4)
    forward = FusedForward(model, kv_cache, PlainLinear) if kind in FUSED else RaggedForward(model, kv_cache)
    assert random_session(forward, kv_cache, reference, 0, uses_bias=True) < 1e-5


@pytest.mark.parametrize(("window", "has_mask"), [(None, False), (100, False), (20, True)])
def test_a_mask_is_made_only_where_no_bias_describes_the_attention(
    window: int | None, has_mask: bool
) -> None:
    item = ForwardInput(0, 30, [1] * 10, 10, SamplingParams(), 0, [1] * 40)
    (mask,) = ForwardBatch([item], uses_bias=True).masks(window, torch.float32)
    assert mask is not None and isinstance(mask, CausalBias) != has_mask
    (dense,) = ForwardBatch([item], uses_bias=True).masks(window, torch.float32, is_dense=True)
    assert dense is not None and dense.shape == (10, 40) and not isinstance(dense, CausalBias)


def test_fusing_keeps_no_second_copy_of_the_weights(model_folder: FolderMaker) -> None:
    model = load_model(model_folder("llama"), "float32").model
    before = full_logits(model, [5, 6, 7])
    made: list[torch.Tensor] = []

    def make(weight: torch.Tensor) -> PlainLinear:
        made.append(weight)
        return PlainLinear(weight)

    FusedForward(model, ContiguousKvCache(64, 1), make)
    kept = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    assert {weight.untyped_storage().data_ptr() for weight in made} <= kept
    assert torch.equal(full_logits(model, [5, 6, 7]), before)


@pytest.mark.parametrize("rows_dtype", [None, torch.float32])
@pytest.mark.parametrize("kv_dtype", [None, torch.float32])
def test_fused_bfloat16_is_as_close_as_rounding_allows(
    model_folder: FolderMaker, kv_dtype: Any, rows_dtype: Any
) -> None:
    model = load_model(model_folder("llama"), "bfloat16").model
    kv_cache = ContiguousKvCache(512, 4, kv_dtype)
    forward = FusedForward(model, kv_cache, LinearMaker(rows_dtype), rows_dtype)
    assert random_session(forward, kv_cache, model, 0) < 0.06


def test_a_fused_forward_that_is_wrong_is_not_used(
    model_folder: FolderMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(FusedForward):
        def __call__(self, plan: ForwardBatch) -> torch.Tensor:
            return super().__call__(plan).flip(-1)

    monkeypatch.setattr(forward_choice, "FusedForward", Wrong)
    runner = torch_runner.load_runner(
        ModelConfig(model=model_folder("llama"), role=Role.TARGET, dtype="float32", kv_tokens=512)
    )
    assert runner.description.startswith("ragged")


@pytest.mark.parametrize("kind", KINDS)
def test_only_models_like_llama_are_fused(model_folder: FolderMaker, kind: str) -> None:
    assert can_fuse(load_model(model_folder(kind), "float32").model) == (kind in FUSED)


def test_a_biased_output_is_not_fused() -> None:
    config = make_tiny("llama").config
    config.attention_bias = True
    assert not can_fuse(LlamaForCausalLM(config))


@pytest.mark.parametrize("rows_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "choice",
    [LinearChoice(kind, PLAIN) for kind in (PACKED, HALF, WIDENED)],
    ids=["packed", "half", "widened"],
)
def test_linears_of_every_kind_equal_plain_ones(
    dtype: torch.dtype, rows_dtype: torch.dtype, choice: LinearChoice
) -> None:
    weight = torch.randn(96, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    if dtype is torch.bfloat16 and choice.one not in linear_kinds(weight):
        pytest.skip("this CPU has no instructions for bfloat16")
    rows = torch.randn(37, 64).to(rows_dtype)
    for some in (rows[:1], rows[:5], rows[:16], rows):
        for kind in (choice.one, choice):
            computed = kind(weight, rows_dtype)(some)
            assert computed.dtype is rows_dtype
            torch.testing.assert_close(computed, PLAIN(weight, rows_dtype)(some), rtol=2e-2, atol=8e-2)


def test_a_float16_weight_is_closer_than_bfloat16() -> None:
    weight = torch.randn(96, 512, generator=torch.Generator().manual_seed(0)).bfloat16()
    rows = torch.randn(16, 512)
    exact = torch.nn.functional.linear(rows.double(), weight.double())
    half = (HALF(weight, torch.float32)(rows) - exact).abs().max()
    assert half < 1e-3 < (PLAIN(weight, torch.float32)(rows) - exact).abs().max()


def test_a_weight_that_overflows_float16_stays_plain() -> None:
    make = LinearMaker(torch.float32)
    make.chosen[(8, 8)] = LinearChoice(HALF, HALF)
    plain = make(torch.full((8, 8), 1e6).bfloat16())
    assert isinstance(plain, CastLinear) and plain(torch.ones(1, 8))[0, 0] == pytest.approx(8e6, rel=1e-2)
    assert isinstance(make(torch.ones(8, 8).bfloat16()), HalfLinear)


def test_a_linear_that_differs_is_not_used() -> None:
    def wrong(weight: torch.Tensor) -> Linear:
        return lambda rows: rows.new_zeros(len(rows), 8)

    make = LinearMaker()
    make.chosen[(8, 8)] = LinearChoice(PLAIN, LinearKind(wrong))
    assert isinstance(make(torch.ones(8, 8)), PlainLinear)
    make.chosen[(8, 8)] = LinearChoice(PLAIN, PACKED)
    assert isinstance(make(torch.ones(8, 8)), RowCountLinear)


def test_packing_a_model_leaves_shared_weights_alone(model_folder: FolderMaker) -> None:
    model = load_model(model_folder("llama"), "bfloat16").model
    make = LinearMaker()
    make.chosen = {
        (32, 32): LinearChoice(WIDENED, WIDENED),
        (48, 32): LinearChoice(WIDENED, WIDENED),
        (16, 32): LinearChoice(PLAIN, PLAIN),
        (32, 48): LinearChoice(PLAIN, PLAIN),
    }
    expected = full_logits(model, [1, 2, 3])
    pack_model(model, make)
    assert type(model.lm_head) is torch.nn.Linear
    assert type(model.model.layers[0].mlp.gate_proj).__name__ == "PackedModule"
    torch.testing.assert_close(full_logits(model, [1, 2, 3]), expected, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize(("share", "is_copied"), [(0.4, True), (0.6, False)])
def test_an_embedding_keeps_its_weight_beside_a_copy_that_is_much_faster(
    model_folder: FolderMaker, share: float, is_copied: bool
) -> None:
    model = load_model(model_folder("llama"), "bfloat16").model
    make = LinearMaker()
    make.chosen = dict.fromkeys([(32, 32), (48, 32), (16, 32), (32, 48)], LinearChoice(PLAIN, PLAIN))
    make.chosen[96, 32] = LinearChoice(WIDENED, WIDENED, share)
    expected, embedding = full_logits(model, [1, 2, 3]), model.get_input_embeddings().weight
    pack_model(model, make, make.make_copy)
    assert (type(model.lm_head) is torch.nn.Linear) != is_copied
    assert make.describe() == f"{int(is_copied)} of 5 shapes packed"
    assert model.get_input_embeddings().weight is embedding and embedding.shape == (96, 32)
    torch.testing.assert_close(full_logits(model, [1, 2, 3]), expected, rtol=5e-2, atol=5e-2)
