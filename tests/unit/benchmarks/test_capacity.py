"""Simulated deployments by size: their costs, and what is made of the windows."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness.load import Window
from benchmarks.harness.machine import this_machine
from benchmarks.scenarios.capacity.measure import Measured
from benchmarks.scenarios.capacity.plan import FLY, LANGUAGE, PLAIN, Plan
from benchmarks.scenarios.capacity.report import is_flagged, make_report, size_rows

PLAN = Plan()


def measured(
    rate: float, targets: int, outside: float = 0.0, setting: str = PLAIN, late: float = 0.01
) -> Measured:
    """Ten real seconds at a dilation of 20: half a simulated one."""
    window = Window(setting, 1, 0, round(rate / 2), 10.0, (2.0,), ((0.4, 1), (0.8, 4)), 3, 30, 6)
    return Measured(window, 20.0, 7.0, late, outside, PLAN.deployment(targets))


def test_a_forward_costs_what_its_roofline_says() -> None:
    target, costs = PLAN.target, PLAN.target.simulated(LANGUAGE)
    assert target.kv_bytes == 320 * 1024 and PLAN.drafter.kv_bytes == 128 * 1024
    weights_s = 2 * 70.6e9 / (2 * 4.8e12 * 0.75)
    assert costs.forward_s(0, 1) == pytest.approx(weights_s + 0.3e-3 + 160 * 10e-6)
    assert costs.forward_s(0, target.knee_rows) == costs.forward_s(0, 1), "below the knee rows are free"
    above = costs.forward_s(0, 4 * target.knee_rows) - costs.forward_s(0, 1)
    assert above == pytest.approx(3 * weights_s, rel=0.02), "there compute takes as long as the weights"
    assert Plan(bandwidth_share=0.41).target.base_s > 1.7 * target.base_s


def test_deployments_are_compared_with_the_smallest_of_the_same_setting(tmp_path: Path) -> None:
    sizes = [measured(100 * n, n, setting=name) for name in (PLAIN, FLY) for n in (1, 4, 64)]
    rows = size_rows(PLAN, sizes)
    assert [row.scaling for row in rows] == [1.0] * 6 and not any(map(is_flagged, rows))
    assert rows[0].inter_token.p50 == pytest.approx(0.01) and rows[0].gpu_s == 20.0 < rows[3].gpu_s
    slow = [*sizes[:-1], measured(100 * 64, 64, 0.1, FLY)]
    assert is_flagged(size_rows(PLAN, slow)[-1])
    assert is_flagged(size_rows(PLAN, [measured(100, 1, late=0.06)])[0])
    page = make_report(PLAN, this_machine(), slow).write(tmp_path, tmp_path).read_text()
    assert f"{PLAIN}: 64 replicas, tokens/s of a replica | >= 0.90x | 1.00x" in page
    assert "| >= 0.90x | 1.00x | no verdict: the CPU was too slow |" in page
    assert (tmp_path / "capacity-replicas.svg").is_file()


def test_further_deployments_of_the_largest_size_have_no_goal(tmp_path: Path) -> None:
    small, large = measured(100, 1), measured(400, 4)
    further = replace(large, deployment=replace(large.deployment, drafters=1))
    page = make_report(PLAN, this_machine(), [small, further, large]).write(tmp_path, tmp_path).read_text()
    assert page.count("4 replicas, tokens/s of a replica") == 1
