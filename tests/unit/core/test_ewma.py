"""The two averages against their definitions."""

import pytest

from flyserve.core.ewma import Ewma, RecentMean


def test_the_first_value_of_an_ewma_counts_in_full_and_later_ones_by_their_share() -> None:
    average = Ewma(0.25)
    assert average.value is None
    values = []
    for value in (8.0, 0.0, 4.0):
        average.add(value)
        values.append(average.value)
    assert values == [8.0, 6.0, 5.5]


def test_a_recent_mean_is_the_plain_mean_until_its_memory_is_full() -> None:
    mean = RecentMean(100.0, memory=4.0)
    assert mean.value == 100.0
    for value in (1.0, 2.0, 3.0, 6.0):
        mean.add(value)
    assert mean.value == pytest.approx(3.0) and mean.weight == 4.0
    mean.add(7.0)
    assert mean.value == pytest.approx(4.0) and mean.weight == 4.0


def test_a_recent_mean_counts_values_by_weight() -> None:
    mean = RecentMean(0.0, memory=100.0)
    mean.add(1.0, weight=3.0)
    mean.add(5.0, weight=1.0)
    assert mean.value == pytest.approx(2.0) and mean.weight == 4.0
