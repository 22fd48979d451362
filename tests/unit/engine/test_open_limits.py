"""The parameters of `open`: every invalid field is rejected by name."""

import math
from typing import Any

import pytest

from flyserve.core.errors import InvalidRequest
from flyserve.core.messages import Open
from flyserve.core.request import SamplingParams
from flyserve.core.types import Coupling
from services.engine.engine import check_open


def fields_of(**sampling: Any) -> list[str]:
    with pytest.raises(InvalidRequest) as caught:
        check_open(Open("r", 1, SamplingParams(**sampling)), 100, 64)
    return [violation.field.partition("[")[0] for violation in caught.value.violations]


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("temperature", (math.nan, math.inf, -math.inf, -0.1)),
        ("top_k", (-1,)),
        ("top_p", (math.nan, 0.0, -0.5, 1.01, math.inf)),
        ("min_p", (math.nan, -0.1, 1.01)),
        ("repetition_penalty", (math.nan, 0.0, -1.0, math.inf)),
        ("presence_penalty", (math.nan, math.inf, -math.inf)),
        ("frequency_penalty", (math.nan, math.inf, -math.inf)),
        ("min_tokens", (-1,)),
        ("seed", (-1, 2**64)),
        ("stop_token_ids", ((100,), (-1,))),
        ("logit_bias", ({100: 1.0}, {3: math.nan}, {3: math.inf})),
    ],
)
def test_values_out_of_range_are_rejected_by_name(name: str, bad: tuple[Any, ...]) -> None:
    for value in bad:
        assert fields_of(**{name: value}) == [f"sampling.{name}"], value


def test_all_violations_are_reported_at_once() -> None:
    assert fields_of(temperature=math.nan, top_p=2.0) == ["sampling.temperature", "sampling.top_p"]


@pytest.mark.parametrize("asked", [-1, 21])
def test_more_than_twenty_logprobs_are_rejected(asked: int) -> None:
    with pytest.raises(InvalidRequest, match="num_logprobs"):
        check_open(Open("r", 1, num_logprobs=asked), 100, 64)


@pytest.mark.parametrize("coupling", Coupling)
def test_values_within_the_limits_are_accepted(coupling: Coupling) -> None:
    sampling = SamplingParams(
        temperature=1e-3,
        top_k=10_000,
        top_p=1e-9,
        min_p=1.0,
        repetition_penalty=0.5,
        presence_penalty=-2.0,
        logit_bias={3: -math.inf},
        seed=2**64 - 1,
        coupling=coupling,
    )
    check_open(Open("r", 64, sampling, num_logprobs=20), 100, 64)
