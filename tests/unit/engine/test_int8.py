"""Weights and rows in eight bits: near the plain product, and the same bits for every number of rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from flyserve.core.errors import ConfigError
from flyserve.core.messages import Role
from flyserve.core.request import SamplingParams
from services.common.config import parse
from services.engine.base import ForwardInput
from services.engine.config import Dtype, ModelConfig, Quantization
from services.engine.forward.int8 import Int8Linear, Int8Maker, int8_name
from services.engine.forward.linears import PlainLinear
from services.engine.forward.torch_runner import TorchRunner, load_runner
from services.target.config import TargetConfig
from tests.support.processes import TARGET_MODEL


def weight(outputs: int, inputs: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return (0.05 * torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))).to(dtype)


@given(
    rows=st.integers(1, 40),
    shape=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    scale=st.sampled_from([1e-4, 1.0, 1e4]),
    seed=st.integers(0, 100),
)
def test_a_row_has_the_same_bits_with_any_other_rows(
    rows: int, shape: tuple[int, int], scale: float, seed: int
) -> None:
    linear = Int8Linear(weight(*shape, seed))
    given_rows = scale * torch.randn(rows, shape[1], generator=torch.Generator().manual_seed(seed + 1))
    together = linear(given_rows)
    alone = torch.cat([linear(row[None]) for row in given_rows])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5, 33])
def test_the_product_is_near_the_plain_one(dtype: torch.dtype, rows: int) -> None:
    plain = weight(192, 256, 3, dtype)
    given_rows = torch.randn(rows, 256, generator=torch.Generator().manual_seed(4)).to(dtype)
    found, expected = Int8Linear(plain)(given_rows), PlainLinear(plain)(given_rows)
    assert found.dtype is dtype and found.shape == (rows, 192)
    assert (found - expected).abs().max() < 0.03 * expected.abs().max()


def test_the_largest_rows_and_weights_do_not_overflow() -> None:
    for sign in (1, -1):
        assert Int8Linear(sign * torch.ones(8, 64))(torch.ones(3, 64)).allclose(torch.tensor(64.0 * sign))


def test_rows_and_weights_of_zeros_give_zeros() -> None:
    some = weight(8, 16, 5)
    assert not Int8Linear(some)(torch.zeros(3, 16)).any()
    assert not Int8Linear(torch.zeros(8, 16))(torch.ones(3, 16)).any()


def test_a_weight_whose_product_is_too_far_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    maker = Int8Maker()
    assert isinstance(maker(weight(32, 64, 6)), Int8Linear)
    monkeypatch.setattr("services.engine.forward.int8._TOLERANCE", 0.0)
    assert isinstance(maker(weight(32, 64, 7)), PlainLinear)
    assert maker.describe() == f"1 of 2 weights in {int8_name()}"


def runner_of(model: Path, **values: Any) -> TorchRunner:
    config = {"model": model, "max_sequences": 2, "kv_tokens": 512, **values}
    return load_runner(ModelConfig(role=Role.TARGET, **config))


def choices(runner: TorchRunner, ids: list[int], rows: int) -> list[int]:
    """Return the choices after each of the last 16 tokens, computed with so many rows per forward."""
    slot = runner.allocate(len(ids))
    assert slot is not None
    found, start = list[int](), 0
    for end in range(len(ids) - 16 + rows, len(ids) + 1, rows):
        item = ForwardInput(slot, start, ids[start:end], rows, SamplingParams(), 0, ids[:end])
        found += runner.logits([item]).argmax(-1).tolist()
        start = end
    runner.free(slot)
    return found


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_model_of_any_forward_is_quantized(model_folder: Callable[[str], Path], kind: str) -> None:
    folder = model_folder(kind)
    plain, quantized = runner_of(folder), runner_of(folder, quantization="int8")
    assert f"weights in {int8_name()}" in quantized.description
    assert (plain.info.quantization, quantized.info.quantization) == ("", "int8")
    assert quantized.info.weight_fingerprint == f"{plain.info.weight_fingerprint}-{int8_name()}"
    assert quantized.weight_bytes < plain.weight_bytes


def test_a_quantized_model_chooses_almost_the_same_tokens() -> None:
    # In bfloat16 the number of rows could decide a choice between two tokens that are nearly as likely.
    plain = runner_of(TARGET_MODEL, dtype=Dtype.FLOAT32)
    quantized = runner_of(TARGET_MODEL, dtype=Dtype.FLOAT32, quantization=Quantization.INT8)
    tokenizer = AutoTokenizer.from_pretrained(TARGET_MODEL)
    ids = tokenizer("Karl has 7 books. Now Karl loses 3 books. Karl has 4 books.\nAnswer: 4\n")["input_ids"]
    expected, found = (choices(runner, ids, 16) for runner in (plain, quantized))
    assert sum(one == other for one, other in zip(found, expected, strict=True)) >= 14
    assert [choices(quantized, ids, rows) for rows in (1, 4)] == [found] * 2


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"device": "cuda"}, "quantization: is int8, must be none with device cuda"),
        ({"shards": 2}, "quantization: is int8, must be none with shards"),
    ],
)
def test_what_cannot_be_quantized_is_refused(values: dict[str, Any], fault: str) -> None:
    data = {"role": "target", "model": "/m", "quantization": "int8", **values}
    with pytest.raises(ConfigError, match=fault):
        parse(TargetConfig, data, "target")
