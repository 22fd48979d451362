"""Simulated deployments over real sockets: throughput by replicas, a slow CPU."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from benchmarks.harness.command import Context
from benchmarks.harness.machine import this_machine
from benchmarks.harness.report import Row
from benchmarks.scenarios.capacity.measure import measure_stage
from benchmarks.scenarios.capacity.plan import FLY, PLAIN, Deployment, Plan, Stage
from benchmarks.scenarios.capacity.report import is_flagged, size_rows

PLAN = replace(Plan().quick(), settle_s=0.4, measure_s=1.2)
DILATIONS = (6.0, 12.0, 24.0)
MOST_DISTORTION = 0.1


def measure(
    dilation: float, settings: tuple[str, ...], *deployments: Deployment, plan: Plan = PLAN
) -> list[Row]:
    context = Context(this_machine(), Console(file=io.StringIO()))
    return size_rows(plan, measure_stage(plan, context, Stage(deployments, settings, dilation)))


def measure_in_time(settings: tuple[str, ...], *deployments: Deployment) -> list[Row]:
    """Measure at the first dilation at which the CPU keeps up; skip the test where it never does."""
    for dilation in DILATIONS:
        found = measure(dilation, settings, *deployments)
        if all(each.distortion < MOST_DISTORTION for each in found):
            return found
    pytest.skip(f"the CPU was too slow: {[each.distortion for each in found]}")


def test_throughput_grows_with_the_replicas_and_drafts_speed_decoding_up() -> None:
    found = measure_in_time((PLAIN, FLY), Deployment(1, 1, 1, 8), Deployment(2, 1, 1, 16))
    one, two, one_fly, two_fly = found
    assert 1.5 < two.tokens_per_s / one.tokens_per_s < 2.5
    assert 1.5 < two_fly.tokens_per_s / one_fly.tokens_per_s < 2.5
    assert one_fly.tokens_per_s > 1.3 * one.tokens_per_s and one_fly.tau > 5
    assert one.inter_token is not None and one.inter_token.p50 > PLAN.target.base_s
    assert all(each.late < 0.2 and each.completed for each in (one_fly, two_fly))


def test_a_clock_that_is_too_fast_for_the_cpu_makes_figures_that_are_flagged() -> None:
    long = replace(PLAN, settle_s=6.0, measure_s=15.0)
    (found,) = measure(0.1, (PLAIN,), Deployment(2, 2, 1, 62), plan=long)
    assert is_flagged(found) and found.distortion > 0.3
    assert found.tokens_per_s < 1000, "of the 1,340 that it gives where the clock is slow enough"
