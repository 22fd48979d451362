"""A router at four times the capacity of its target: admitted requests are served as before."""

import pytest

from benchmarks.scenarios.overload import Plan, measure


@pytest.mark.slow
async def test_an_overload_hardly_slows_the_admitted_requests() -> None:
    figures = await measure(Plan(forward_s=0.04, deadline_s=4.0, peak_s=5.0, overload_s=10.0))
    kept = figures.admitted_per_s / figures.peak_per_s
    assert kept > 0.8, "of the peak's throughput: ten seconds are a few batches, not an average"
    assert figures.rejection_p50_ms < 50
    assert figures.outcomes["rejected"] > figures.outcomes["done"] > 0 == figures.outcomes.get("failed", 0)
    assert figures.memory_most_mb < figures.memory_before_mb + 20
    assert figures.recovery_s < 5
