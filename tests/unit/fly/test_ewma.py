"""The two averages against their definitions."""

import pytest

from fly.ewma import Ewma, RecentLine, RecentMean


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


@pytest.mark.parametrize(("first", "slope"), [(0.0, 1.0), (3.0, 0.5), (5.0, 0.0)])
def test_a_recent_line_goes_through_recent_points(first: float, slope: float) -> None:
    line = RecentLine(memory=50.0, prior=1.0)
    assert line.estimate(4.0) == 4.0
    for index in range(300):
        x = float(1 + index % 10)
        line.add(x, 9.0 if index < 100 else first + slope * x)
    assert [line.estimate(x) for x in (0.0, 6.0, 20.0)] == pytest.approx(
        [first + slope * x for x in (0.0, 6.0, 20.0)], abs=0.3
    )


def test_a_recent_line_without_spread_goes_through_the_mean_with_the_assumed_slope() -> None:
    line = RecentLine(memory=50.0, prior=64.0)
    for _ in range(20):
        line.add(8.0, 9.0)
    assert (line.estimate(8.0), line.estimate(10.0)) == pytest.approx((9.0, 11.0))


def test_the_slope_of_a_recent_line_stays_between_none_and_one() -> None:
    falling, steep = RecentLine(50.0, 1.0), RecentLine(50.0, 1.0)
    for x in (1.0, 2.0, 3.0) * 30:
        falling.add(x, -5.0 * x)
        steep.add(x, 5.0 * x)
    assert falling.estimate(9.0) == falling.estimate(0.0)
    assert steep.estimate(9.0) - steep.estimate(8.0) == pytest.approx(1.0)
