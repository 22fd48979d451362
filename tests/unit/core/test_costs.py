"""The seconds of a forward by its size: at observed sizes, between them, and beyond."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.costs import CostCurve
from tests.support.clock import VirtualClock

SECONDS = st.floats(0, 1e3) | st.sampled_from([math.inf, math.nan, -1.0])


def seen(*forwards: tuple[float, float]) -> CostCurve:
    curve = CostCurve(VirtualClock())
    for size, seconds in forwards * 20:
        curve.observe(size, seconds)
    return curve


def test_costs_are_measured_at_observed_sizes_and_linear_between_them() -> None:
    curve = seen((4, 1.0), (8, 2.0), (64, 2.0), (128, 4.0))
    assert curve.estimate(6) == pytest.approx(1.5, rel=0.05)
    assert curve.estimate(36) == pytest.approx(2.0, rel=0.05)
    assert curve.estimate(256) == pytest.approx(8.0, rel=0.05), "as steep as before"
    assert CostCurve(VirtualClock()).estimate(7) == 0.0


def test_a_single_delayed_forward_hardly_counts() -> None:
    curve = seen((8, 1.0), (16, 1.0))
    curve.observe(12, 50.0)
    assert curve.estimate(12) == pytest.approx(1.0, rel=0.01)


def test_a_size_that_was_not_observed_for_long_is_forgotten() -> None:
    clock = VirtualClock()
    curve = CostCurve(clock)
    curve.observe(100, 9.0)
    clock.advance(100)
    curve.observe(10, 1.0)
    assert curve.estimate(100) < 2


@given(st.lists(st.tuples(st.floats(-1, 2000), SECONDS), max_size=40), st.floats(1, 3000))
def test_a_curve_never_falls_and_is_never_negative(seen: list[tuple[float, float]], size: float) -> None:
    curve = CostCurve(VirtualClock())
    for each, seconds in seen:
        curve.observe(each, seconds)
    low, high = curve.estimate(size), curve.estimate(size * 1.5)
    assert 0 <= low <= high * (1 + 1e-9) < math.inf
