"""The distributions of drafts: what is wrong with one is said by name."""

import math

import pytest

from fly.errors import InvalidRequest
from fly.types import SparseDistribution
from services.target.distributions import check_distributions

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
    with pytest.raises(InvalidRequest) as caught:
        check_distributions((GOOD, bad), (7, 7), 100)
    assert caught.value.violations[0].field == f"distributions[1].{field}"


@pytest.mark.parametrize("given", [(GOOD,), (GOOD, GOOD, GOOD)])
def test_there_is_one_for_each_draft_or_none(given: tuple[SparseDistribution, ...]) -> None:
    with pytest.raises(InvalidRequest, match=r"distributions are \d, drafts are 2"):
        check_distributions(given, (7, 7), 100)


@pytest.mark.parametrize("given", [(), (GOOD, GOOD), (EMPTY, GOOD)])
def test_good_ones_pass(given: tuple[SparseDistribution, ...]) -> None:
    check_distributions(given, (7, 7), 100)
