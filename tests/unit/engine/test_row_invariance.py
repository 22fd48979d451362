"""A row has the same bits alone, in any batch, at any place in a chunk, and over any length of memory."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flyserve.core.errors import ConfigError, ModelError
from flyserve.core.messages import Role
from flyserve.core.request import SamplingParams
from services.common.config import parse
from services.engine.base import ForwardInput
from services.engine.config import Dtype, ModelConfig, Quantization
from services.engine.forward import attend
from services.engine.forward.linears import Linear, PlainLinear
from services.engine.forward.packed import LinearKind
from services.engine.forward.padding import KEY_BLOCK, Padding
from services.engine.forward.proven import BoundedLinear, ProvenMaker, TiledMaker, is_row_invariant
from services.engine.forward.torch_runner import TorchRunner, load_runner
from services.target.config import TargetConfig
from tests.support.long_contexts import PLACES, LongContext, Rows
from tests.support.processes import TARGET_MODEL
from tests.support.tiny_models import make_tiny

TOKENS = 80
LONG: dict[str, dict[str, Any]] = {
    "llama": {"num_hidden_layers": 1},
    "gemma2": {"num_hidden_layers": 1, "layer_types": ["full_attention"]},
    "gpt_oss": {"layer_types": ["sliding_attention", "full_attention"]},
}
MODES = [
    (Dtype.FLOAT32, Quantization.NONE),
    (Dtype.BFLOAT16, Quantization.NONE),
    (Dtype.BFLOAT16, Quantization.INT8),
]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=MODES, ids=lambda mode: f"{mode[0]}-{mode[1]}")
def runner(request: pytest.FixtureRequest) -> TorchRunner:
    dtype, quantization = request.param
    return load_runner(
        ModelConfig(
            model=TARGET_MODEL,
            role=Role.TARGET,
            dtype=dtype,
            quantization=quantization,
            kv_tokens=16384,  # with matrix units, attention takes 512 keys of each sequence
            row_invariant="on",
        )
    )


def ids_of(seed: int, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 500, (length,), generator=generator).tolist()


def logits_in_chunks(
    runner: TorchRunner, ids: Sequence[int], ends: Sequence[int], others: Sequence[int]
) -> torch.Tensor:
    """Return the logits of all rows, computed up to each end in turn, beside other sequences' rows."""
    taken, parts, start = [runner.allocate(len(ids))], [], 0
    (slot,) = taken
    assert slot is not None
    for end in ends:
        batch = []
        for index, rows in enumerate(others):
            other = runner.allocate(rows)
            assert other is not None
            taken.append(other)
            batch.append(input_of(other, ids_of(index + 1, rows), 0))
        place = len(batch) // 2
        batch.insert(place, input_of(slot, list(ids[:end]), start))
        first = sum(others[:place])
        parts.append(runner.logits(batch)[first : first + end - start])
        start = end
    for each in taken:
        assert each is not None
        runner.free(each)
    return torch.cat(parts)


def input_of(slot: int, ids: list[int], start: int) -> ForwardInput:
    return ForwardInput(slot, start, ids[start:], len(ids) - start, SamplingParams(), 0, ids)


def test_a_position_has_the_same_bits_in_any_chunk_and_beside_any_rows(runner: TorchRunner) -> None:
    ids = ids_of(0, TOKENS)
    whole = logits_in_chunks(runner, ids, [TOKENS], [])
    alone = logits_in_chunks(runner, ids, [40, *range(41, TOKENS + 1)], [])
    assert torch.equal(whole, alone)
    for ends, others in (
        ([16, 17, 33, 36, TOKENS], [1, 7]),
        ([3, 67, TOKENS], [16]),
        ([64, TOKENS], [1] * 9),
    ):
        assert torch.equal(logits_in_chunks(runner, ids, ends, others), whole)


def test_a_long_context_has_the_same_bits_at_every_length_of_memory(runner: TorchRunner) -> None:
    ids = ids_of(5, 620)
    whole = logits_in_chunks(runner, ids, [512, 620], [])
    ends = [130, 131, 191, 192, 193, 260, 261, 383, 385, 500, 511, 512, 513, 600, 620]
    assert torch.equal(logits_in_chunks(runner, ids, ends, [5]), whole)


@cache
def long_context(folder: Path, kind: str, dtype: Dtype) -> LongContext:
    return LongContext(folder, kind, dtype, **LONG[kind])


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("llama", Dtype.FLOAT32), ("gemma2", Dtype.BFLOAT16), ("gpt_oss", Dtype.FLOAT32)],
)
@given(places=PLACES)
@settings(max_examples=20)
def test_rows_at_any_places_of_4096_positions_have_the_same_bits(
    tmp_path_factory: pytest.TempPathFactory, kind: str, dtype: Dtype, places: list[Rows]
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"long-{kind}"
    assert long_context(folder, kind, dtype).has_equal_bits(places)


@pytest.mark.parametrize(("kind", "dtype"), [("gemma2", Dtype.BFLOAT16), ("gpt_oss", Dtype.FLOAT32)])
def test_rows_that_attend_in_parts_have_the_same_bits(
    tmp_path_factory: pytest.TempPathFactory, kind: str, dtype: Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = long_context(tmp_path_factory.getbasetemp() / f"long-{kind}", kind, dtype)
    monkeypatch.setattr(attend, "_MOST_SCORES", 2**18)
    assert context.has_equal_bits([Rows(3000, 200), Rows(10, 90), Rows(4000, 1)])


def test_what_a_rejected_draft_left_in_memory_changes_nothing(runner: TorchRunner) -> None:
    ids = ids_of(3, 30)
    expected = logits_in_chunks(runner, ids, [20, 21], [])[-1]
    slot = runner.allocate(30)
    assert slot is not None
    runner.logits([input_of(slot, ids, 0)])
    with torch.inference_mode():
        for memory in runner._kv_cache._layers[slot].values():  # type: ignore[attr-defined]
            memory[21:30].fill_(torch.nan)
    found = runner.logits([input_of(slot, ids[:21], 20)])[-1]
    runner.free(slot)
    assert torch.equal(found, expected)


@given(
    shape=st.sampled_from([(96, 64), (100, 97), (33, 1600), (512, 192), (2048, 576), (700, 1536)]),
    mode=st.sampled_from([(torch.float32, None), (torch.bfloat16, torch.float32), (torch.bfloat16, None)]),
    count=st.integers(2, 64),
    place=st.integers(0, 63),
    seed=st.integers(0, 99),
)
@settings(max_examples=30)
def test_a_linear_gives_a_row_the_same_bits_beside_any_others(
    shape: tuple[int, int], mode: tuple[torch.dtype, torch.dtype | None], count: int, place: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    dtype, rows_dtype = mode
    linear = made(shape, dtype, rows_dtype)
    rows = torch.randn(count, shape[1], generator=generator).to(rows_dtype or dtype)
    place %= count
    assert torch.equal(linear(rows)[place], linear(rows[place : place + 1])[0])


@cache
def made(shape: tuple[int, int], dtype: torch.dtype, rows_dtype: torch.dtype | None) -> Linear:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    return ProvenMaker(rows_dtype)(weight)


def test_a_weight_that_its_kind_cannot_hold_is_made_by_another_proven_kind() -> None:
    # Half-precision numbers end at 65504.
    weight = torch.randn(96, 64, generator=torch.Generator().manual_seed(0)).mul_(1e6).bfloat16()
    linear = ProvenMaker(torch.float32)(weight)
    rows = torch.randn(3, 64)
    assert torch.equal(linear(rows)[2], linear(rows[2:])[0])
    assert torch.allclose(linear(rows), rows @ weight.float().T, rtol=2e-2, atol=1e5)


@given(length=st.integers(1, 5000), lengths=st.sets(st.integers(1, 31)))
def test_padded_keys_hold_the_length_and_end_at_a_proven_number(length: int, lengths: set[int]) -> None:
    proven = (*(16 * each for each in sorted(lengths)), KEY_BLOCK)
    padded = Padding(4, proven).padded_keys(length)
    assert length <= padded < length + KEY_BLOCK
    assert padded % KEY_BLOCK in (0, *proven)
    assert (padded - 1) // KEY_BLOCK == (length - 1) // KEY_BLOCK


@pytest.mark.parametrize("number", [1, 3, *range(16, 257, 16), 512])
def test_a_linear_whose_bits_depend_on_the_number_of_rows_is_found(number: int) -> None:
    """Verifications have up to 16 rows each, and a GPU's graphs powers of two."""
    generator = torch.Generator().manual_seed(0)  # whole numbers: their sums are equal in any order
    weight, rows = (
        torch.randint(-9, 10, shape, generator=generator).float() for shape in ((64, 96), (512, 96))
    )

    def uneven(rows: torch.Tensor) -> torch.Tensor:
        return PlainLinear(weight)(rows * 2 if len(rows) == number else rows)

    assert not is_row_invariant(uneven, weight, torch.float32, rows)
    assert is_row_invariant(BoundedLinear(uneven, 4), weight, torch.float32, rows) is (number < 4)


def test_another_order_of_sums_is_found_although_results_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(weight: torch.Tensor) -> Linear:
        exact = BoundedLinear(PlainLinear(weight.float()), 16)
        # For fewer than 4 rows, an error that bfloat16 hides unless the terms of a sum cancel each other.
        return lambda rows: (exact(rows.float()) + (2**-20 if len(rows) < 4 else 0)).bfloat16()

    kind = LinearKind(make)
    monkeypatch.setattr("services.engine.forward.proven._preferred", lambda weight: (kind,))
    monkeypatch.setattr("services.engine.forward.proven.linear_kinds", lambda weight: (kind,))
    half = torch.randn(64, 48, generator=torch.Generator().manual_seed(0)).bfloat16()
    linear, rows = ProvenMaker()(torch.cat([half, half], 1)), torch.cat([half, -half], 1)
    assert torch.equal(linear(rows)[:1], linear(rows[:1]))


@pytest.mark.parametrize(
    ("uses_other", "bounds"),
    [
        (lambda count, place: False, (1, 512)),
        (lambda count, place: count < 64, (64, 512)),
        (lambda count, place: count > 100, (64, 64)),
        (lambda count, place: place == 3, None),
    ],
)
def test_a_linear_on_a_gpu_computes_as_many_rows_at_a_time_as_give_equal_bits(
    monkeypatch: pytest.MonkeyPatch, uses_other: Callable[[int, int], bool], bounds: tuple[int, int] | None
) -> None:
    multiply, counts = torch.nn.functional.linear, set[int]()

    def uneven(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Multiply as a library with another order of sums for some numbers of rows, or places."""
        counts.add(len(rows))
        factors = [1.001 if uses_other(len(rows), place) else 1.0 for place in range(len(rows))]
        return (multiply(rows.double(), weight.double()) * torch.tensor(factors)[:, None]).float()

    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(torch.nn.functional, "linear", uneven)
    linear = TiledMaker()(weight)
    counts.clear()
    for number in (600, 1):
        assert len(linear(torch.ones(number, 96))) == number
    least, most = bounds or (1, 600)
    assert counts == {least, most, max(least, 600 % most or least)}


@pytest.mark.parametrize(("least", "is_invariant"), [(4, True), (16, True), (64, True), (65, False)])
def test_as_many_rows_are_padded_as_the_linears_of_a_model_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int, is_invariant: bool
) -> None:
    multiply = torch.nn.functional.linear

    def uneven(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        found = multiply(rows, weight, bias)
        return found if rows.shape[-2] >= least else found * (1 + 1e-5)

    make_tiny("gemma2").save_pretrained(tmp_path)
    monkeypatch.setattr(torch.nn.functional, "linear", uneven)
    config = ModelConfig(model=tmp_path, role=Role.TARGET, dtype=Dtype.FLOAT32, kv_tokens=512)
    assert load_runner(config).info.row_invariant is is_invariant


@pytest.mark.parametrize(
    ("place", "broken", "named"),
    [
        ("services.engine.forward.fused._silu", lambda rows: rows * (1 + 1e-4 * len(rows)), "the activation"),
        (
            "services.engine.forward.fused_attention.RotatedProjection.__call__",
            lambda self, rows: self._rows.copy_(rows).mul_(1 + 1e-4 * len(rows)),
            "attention",
        ),
    ],
)
def test_on_is_refused_where_a_row_depends_on_its_batch(
    monkeypatch: pytest.MonkeyPatch, place: str, broken: Callable[..., torch.Tensor], named: str
) -> None:
    monkeypatch.setattr("services.engine.forward.choice.agrees", lambda *_: True)
    monkeypatch.setattr(place, broken)
    keys = {"model": TARGET_MODEL, "role": Role.TARGET, "kv_tokens": 512}
    with pytest.raises(ModelError, match=rf"row_invariant: is on, but .* in .*{named}.*: set it to auto"):
        load_runner(ModelConfig(**keys, row_invariant="on"))
    assert not load_runner(ModelConfig(**keys)).info.row_invariant


def test_replicas_with_equal_kernels_say_so(runner: TorchRunner) -> None:
    keys = {"model": TARGET_MODEL, "role": Role.TARGET, "kv_tokens": 512}
    equal, other = load_runner(ModelConfig(**keys)), load_runner(ModelConfig(**keys, dtype="float32"))
    assert equal.info.kernels == load_runner(ModelConfig(**keys)).info.kernels != other.info.kernels


def test_yaml_reads_on_and_off_as_booleans(tmp_path: Path) -> None:
    for value, expected in ((True, "on"), (False, "off"), ("auto", "auto"), ("on", "on")):
        found = parse(TargetConfig, {"model": str(tmp_path), "row_invariant": value}, "flags")
        assert found.row_invariant == expected
    with pytest.raises(ConfigError, match="row_invariant"):
        parse(TargetConfig, {"model": str(tmp_path), "row_invariant": "yes please"}, "flags")
