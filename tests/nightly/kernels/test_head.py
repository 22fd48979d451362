"""The kernel of the greedy head: interpreted against plain torch, and compiled for GPUs."""

import math
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fly.request import SamplingParams
from fly.types import EntropyEstimator
from gpu_kernels.plain import plain_row_facts
from services.engine.base import ForwardInput, Scores
from services.engine.head.head import Head
from tests.nightly.kernels.triton_rig import TritonProcess, needs_triton

INF, NAN = float("inf"), float("nan")
HISTORY = [3, 4, 3, 9, 12, 40, 3, 7]

pytestmark = needs_triton


def drawn(seed: int, rows: int, width: int, scale: float = 4.0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * scale


def assert_facts(computed: torch.Tensor, logits: torch.Tensor, vocab_size: int) -> None:
    """Choices and largest logits must be exact, sums as exact as float32."""
    expected = plain_row_facts(logits.double(), vocab_size)
    assert torch.equal(computed[:, :4], expected[:, :4])
    torch.testing.assert_close(computed[:, 4:], expected[:, 4:], rtol=1e-6, atol=2e-6)


@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 4),
    vocab_size=st.sampled_from([1, 2, 3, 63, 1000, 1024, 8191, 8193, 17_003]),
    padding=st.integers(0, 70),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    levels=st.sampled_from([1, 3, 40, None]),
    excluded=st.sampled_from([0.0, 0.5, 0.999]),
)
@settings(max_examples=15, deadline=None)
def test_any_rows_have_the_facts_of_plain_torch(
    interpreted: TritonProcess,
    seed: int,
    rows: int,
    vocab_size: int,
    padding: int,
    dtype: torch.dtype,
    levels: int | None,
    excluded: float,
) -> None:
    """Few `levels` make many equal logits; a share of the tokens is excluded, but never all of them."""
    logits = drawn(seed, rows, vocab_size + padding)
    if levels is not None:
        logits = logits.remainder(levels).floor()
    is_excluded = torch.rand(logits.shape, generator=torch.Generator().manual_seed(seed)) < excluded
    is_excluded[:, seed % vocab_size] = False
    logits = logits.masked_fill(is_excluded, -INF).to(dtype)
    assert_facts(interpreted("row_facts", logits, vocab_size), logits, vocab_size)


def test_the_first_of_equal_logits_is_chosen_within_a_block_and_across_spans(
    interpreted: TritonProcess,
) -> None:
    logits, ties = (
        torch.zeros(6, 20_000),
        [(5, 6), (5, 1029), (1500, 2029), (8191, 8192), (100, 17_000), (0, 1)],
    )
    for row, tied in enumerate(ties):
        logits[row, list(tied)] = 2.5
    facts = interpreted("row_facts", logits, 20_000)
    assert facts[:, 0].tolist() == [first for first, _ in ties]
    zeros = torch.tensor([[0.0, -0.0, 0.0], [-0.0, 0.0, -0.0]])
    assert interpreted("row_facts", zeros, 3)[:, 0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("places", [(5, 1029, 2053), (5, 1029, 6), (5, 8197, 16_389), (100, 101, 9000)])
def test_the_three_largest_may_lie_in_any_places(
    interpreted: TritonProcess, places: tuple[int, int, int]
) -> None:
    """In one lane, in one block and in several spans, in any order."""
    orders = list(permutations((7.0, 8.0, 9.0)))
    logits = torch.rand(len(orders), 17_000, generator=torch.Generator().manual_seed(1))
    logits[:, list(places)] = torch.tensor(orders)
    assert_facts(interpreted("row_facts", logits, 17_000), logits, 17_000)


@pytest.mark.parametrize("place", [0, 7000, 16_999])
def test_a_row_without_a_choice_is_marked_and_no_other_row(interpreted: TritonProcess, place: int) -> None:
    logits = drawn(2, 6, 17_000)
    logits[0, place] = NAN
    logits[1, place] = INF
    logits[2, [place, 3]] = INF
    logits[3] = -INF
    logits[4] = NAN
    facts = interpreted("row_facts", logits, 17_000)
    assert facts[:, 1].isfinite().tolist() == logits.amax(-1).isfinite().tolist() == [False] * 5 + [True]
    assert_facts(facts[5:], logits[5:], 17_000)


def test_large_logits_do_not_overflow(interpreted: TritonProcess) -> None:
    logits = torch.cat([drawn(3, 1, 9000, 1e4), drawn(3, 1, 9000) - 1e6, drawn(3, 1, 9000) - 500.0])
    assert_facts(interpreted("row_facts", logits, 9000), logits, 9000)


def test_rows_may_lie_apart_and_in_any_order_and_padding_does_not_count(interpreted: TritonProcess) -> None:
    wide = drawn(4, 5, 300)
    wide[:, 200:] = 99.0
    logits, rows = wide[:, 50:], torch.tensor([4, 0, 0, 2])
    assert not logits.is_contiguous()
    assert_facts(interpreted("row_facts", logits, 150, rows), logits[rows], 150)
    assert interpreted("row_facts", logits[:0], 150).shape == (0, 6)


def test_the_facts_of_a_row_do_not_depend_on_the_other_rows(interpreted: TritonProcess) -> None:
    logits = drawn(5, 7, 12_345)
    together = interpreted("row_facts", logits, 12_345)
    assert torch.equal(together[3:4], interpreted("row_facts", logits[3:4], 12_345))


def work(num_outputs: int, sampling: SamplingParams | None = None, **kwargs: Any) -> ForwardInput:
    drafts = [*HISTORY[len(HISTORY) - num_outputs + 1 :], -1]
    return ForwardInput(
        0, 0, HISTORY, num_outputs, sampling or SamplingParams(), 4, HISTORY, drafts=drafts, **kwargs
    )


def assert_same(computed: Scores, expected: Scores) -> None:
    assert replace(computed, entropies=()) == replace(expected, entropies=())
    assert computed.entropies == pytest.approx(expected.entropies, rel=1e-5, abs=2e-6)


def test_a_head_with_the_kernel_has_the_scores_of_one_without(interpreted: TritonProcess) -> None:
    plain = [
        work(3),
        work(1, entropy=None),
        work(2, entropy=EntropyEstimator.NORMALIZED, is_proposing=True),
        work(4, SamplingParams(seed=7), with_gaps=True),
    ]
    others = [
        work(2, num_logprobs=2, with_gaps=True),
        work(2, SamplingParams(logit_bias={3: 20.0, 5: 30.0})),
        work(2, entropy=EntropyEstimator.NORMALIZED),
        work(2, SamplingParams(temperature=1.0, seed=3)),
        work(2, SamplingParams(repetition_penalty=2.0)),
    ]
    order = [0, 4, 1, 5, 6, 2, 7, 8, 3]
    batch = [replace([*plain, *others][place], slot=place) for place in order]
    logits = drawn(6, sum(item.num_outputs for item in batch), 640).bfloat16()
    scores, num_rows = interpreted("score", 600, logits, batch)
    assert num_rows == sum(item.num_outputs for item in plain)
    for computed, expected in zip(scores, Head(600)(logits, batch), strict=True):
        assert_same(computed, expected)
        assert not computed.error


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_head_with_the_kernel_reports_the_errors_of_one_without(
    interpreted: TritonProcess, value: float
) -> None:
    batch = [replace(work(3), slot=0), replace(work(4), slot=1), replace(work(2), slot=2)]
    logits = drawn(7, 9, 600)
    logits[3] = logits[8] = value
    scores, _ = interpreted("score", 600, logits, batch)
    expected = Head(600)(logits, batch)
    assert "no token can be chosen at position" in expected[1].error and not expected[0].error
    assert len(expected[2].choices) == 1 and not expected[2].error
    for one, other in zip(scores, expected, strict=True):
        assert_same(one, other)


def test_kernels_that_differ_from_torch_are_refused(interpreted: TritonProcess) -> None:
    assert interpreted("check") == []
    faults = interpreted("check", error=0.01)
    assert len(faults) == 3 and all("results differ from torch's" in fault for fault in faults)


@pytest.mark.parametrize(("capability", "dtype"), [(80, "fp32"), (90, "bf16"), (100, "bf16")])
def test_the_kernels_compile_for_gpus(compiling: TritonProcess, capability: int, dtype: str) -> None:
    types = {"logits": f"*{dtype}", "values": "*fp32", "ids": "*i32"}
    types |= {"vocab_size": "i32", "width": "i32", "row_stride": "i32"}
    constants: dict[str, Any] = {"SPAN": 8192, "LANES": 1024}
    some = types | {"rows": "*i64"}, constants | {"HAS_ROWS": True}
    every = types, constants | {"HAS_ROWS": False, "rows": None}
    for variant in (some, every):
        _, ptx = compiling("compiled", "head_kernels", "span_kernel", *variant, capability, num_warps=4)
        assert "ld.global.v4" in ptx, "a thread loads 16 bytes at once"
    types = {"values": "*fp32", "ids": "*i32", "facts": "*fp64", "num_spans": "i32"}
    spans = 1 << math.ceil(math.log2(151_936 / 8192))
    compiling("compiled", "head_kernels", "row_kernel", types, {"SPANS": spans}, capability, num_warps=1)
