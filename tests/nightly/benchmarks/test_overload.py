"""A router at four times the capacity of its target: requests are served or rejected, nothing fails or grows.

The speeds are those of the scenario `overload`: a test on a busy machine cannot judge them.
"""

from benchmarks.scenarios.load.overload import Plan, measure


async def test_an_overload_is_rejected_and_fails_nothing() -> None:
    figures = await measure(Plan(forward_s=0.04, deadline_s=4.0, peak_s=5.0, overload_s=10.0))
    assert figures.outcomes["rejected"] > figures.outcomes["done"] > 0 == figures.outcomes.get("failed", 0)
    assert figures.memory_most_mb < figures.memory_before_mb + 20
