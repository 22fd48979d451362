"""Limits of the distributions of drafts: each fault is reported with its field."""

import math

import pytest

from flyserve.core.limits import check_distributions, check_sampling
from flyserve.core.request import SamplingParams
from flyserve.core.types import SparseDistribution

GOOD = SparseDistribution((7, 3, 99), (0.5, 0.3, 0.2))
EMPTY = SparseDistribution((), ())


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (SparseDistribution((7, 3), (1.0,)), "probabilities"),
        (SparseDistribution((), (1.0,)), "ids"),
        (SparseDistribution((7, 100), (0.5, 0.5)), "ids"),
        (SparseDistribution((7, -1), (0.5, 0.5)), "ids"),
        (SparseDistribution((7, 7), (0.5, 0.5)), "ids"),
        (SparseDistribution((3, 4), (0.5, 0.5)), "ids"),
        (SparseDistribution(tuple(range(65)), (1 / 65,) * 65), "ids"),
        (SparseDistribution((7, 3), (1.0, 0.0)), "probabilities"),
        (SparseDistribution((7, 3), (1.5, -0.5)), "probabilities"),
        (SparseDistribution((7, 3), (math.nan, 0.5)), "probabilities"),
        (SparseDistribution((7, 3), (math.inf, 0.5)), "probabilities"),
        (SparseDistribution((7, 3), (0.5, 0.498)), "probabilities"),
    ],
)
def test_a_bad_distribution_is_rejected(bad: SparseDistribution, field: str) -> None:
    violations = list(check_distributions((GOOD, bad), (7, 7), 100))
    assert [violation.field for violation in violations] == [f"distributions[1].{field}"]


@pytest.mark.parametrize("given", [(GOOD,), (GOOD, GOOD, GOOD)])
def test_there_is_one_for_each_draft_or_none(given: tuple[SparseDistribution, ...]) -> None:
    (violation,) = check_distributions(given, (7, 7), 100)
    assert (violation.field, violation.description) == ("distributions", f"are {len(given)}, drafts are 2")


@pytest.mark.parametrize("given", [(), (GOOD, GOOD), (EMPTY, GOOD)])
def test_good_ones_pass(given: tuple[SparseDistribution, ...]) -> None:
    assert not list(check_distributions(given, (7, 7), 100))


@pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
@pytest.mark.parametrize("value", [1e31, 1e39, math.nan, math.inf])
def test_a_penalty_by_which_no_logit_stays_finite_is_rejected(name: str, value: float) -> None:
    values = [value, 1 / value if name == "repetition_penalty" else -value]
    for each in values:
        (violation,) = check_sampling(SamplingParams(**{name: each}), 100)
        assert violation.field == f"sampling.{name}" and "1e+30" in violation.description
    assert not list(check_sampling(SamplingParams(**{name: 1e30}), 100))
