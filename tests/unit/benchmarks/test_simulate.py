"""The simulated deployment: costs by the roofline, figures of a window, figures that are flagged."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness.client import Block
from benchmarks.harness.load import Window
from benchmarks.harness.machine import this_machine
from benchmarks.harness.report import Row
from benchmarks.scenarios.simulate.figures import (
    MachineUse,
    Measured,
    is_flagged,
    needed_dilation,
    scaling,
    scaling_goals,
    summarize,
)
from benchmarks.scenarios.simulate.hardware import H200, LLAMA_8B, LLAMA_70B, Replica
from benchmarks.scenarios.simulate.hosts import Sample
from benchmarks.scenarios.simulate.plan import FLY, GOODPUT, PLAIN, SETTINGS, Deployment, Dilations, Plan
from benchmarks.scenarios.simulate.report import Found, make_report
from benchmarks.scenarios.simulate.router import OUTSIDE, make_profile

PLAN = Plan()
MODELS = PLAN.models


def measured(
    targets: int, tokens: int, setting: str = PLAIN, steps_s: float = 10.0, late_s: float = 0.0
) -> Measured:
    """Ten real seconds at a dilation of 20: half a simulated one."""
    shape = PLAN.deployment(targets)
    window = Window(setting, shape.streams, 0, tokens, 10.0, (2.0,), ((0.4, 1), (0.8, 4)), 3, 30, 6)
    busy = shape.streams * steps_s
    services = Sample(10.0, 4.0, 100.0, late_s, busy / 4, busy * 3 / 4, 500, 0.5)
    routers = Sample(10.0, 3.0, 0.0, 0.0, 0.0, 0.0, 500, 0.5)
    return Measured(
        shape,
        MODELS,
        setting,
        20.0,
        window,
        (tokens // 10,) * 10,
        9.9,
        services,
        routers,
        MachineUse(0.5, 1.0),
    )


def one(found: Measured) -> Row:
    (row,) = summarize([found])
    return row


def test_a_forward_costs_what_its_roofline_says() -> None:
    target = Replica(LLAMA_70B, H200, 2, 2048)
    costs = MODELS.target_model
    assert LLAMA_70B.kv_bytes == 320 * 1024 and LLAMA_8B.kv_bytes == 128 * 1024
    weights_s = 2 * 70.6e9 / (2 * 4.8e12 * 0.75)
    assert costs.forward_s(0, 1) == pytest.approx(weights_s + 0.3e-3 + 160 * 10e-6)
    assert costs.forward_s(0, target.knee_rows) == costs.forward_s(0, 1), "below the knee rows are free"
    above = costs.forward_s(0, 4 * target.knee_rows) - costs.forward_s(0, 1)
    assert above == pytest.approx(3 * weights_s, rel=0.02), "there compute takes as long as the weights"
    assert costs.forward_s(8, 8) - costs.forward_s(0, 8) == pytest.approx(8 * 2048 * 320 * 1024 / 7.2e12)
    assert Replica(LLAMA_70B, H200, 4, 2048).base_s < 0.6 * target.base_s
    assert 300_000 < target.kv_tokens < 400_000


def test_a_slower_engine_is_simulated_by_the_share_of_the_bandwidth_that_it_reaches() -> None:
    slow = Plan(bandwidth_share=0.41).models
    fixed_s = 0.3e-3 + 160 * 10e-6
    for model, whole_s in ((slow.target, MODELS.target.base_s), (slow.drafter, MODELS.drafter.base_s)):
        assert model.sequence_s == pytest.approx(2048 * model.model.kv_bytes / model.num_gpus / 4.8e12 / 0.41)
        assert model.base_s > 1.7 * whole_s
    assert slow.target.base_s - fixed_s == pytest.approx((MODELS.target.base_s - fixed_s) * 0.75 / 0.41)


def test_both_models_have_one_language_and_only_the_drafter_deviates() -> None:
    target, drafter = MODELS.target_model, MODELS.drafter_model
    assert target.token_map_hash == drafter.token_map_hash
    assert (target.agreement, drafter.agreement) == (1.0, 0.925) and target.seed == drafter.seed


def test_figures_are_in_simulated_seconds() -> None:
    figures = one(measured(4, 1000, FLY))
    assert figures.tokens_per_s == 2000.0 and set(figures.slices) == {2000.0}
    assert figures.first is not None and figures.first.p50 == pytest.approx(0.1)
    assert figures.inter_token is not None and figures.inter_token.p50 == pytest.approx(0.01)
    assert figures.gpus == 12 and figures.gpu_s == pytest.approx(6.0), "GPU seconds by 1,000 tokens"
    assert one(measured(4, 1000, PLAIN)).gpus == 8, "plain decoding needs no drafters"


def test_a_figure_is_flagged_where_the_cpu_was_too_slow() -> None:
    assert not is_flagged(one(measured(1, 1000)))
    outside = one(measured(1, 1000, steps_s=9.0))
    late = one(measured(1, 1000, late_s=6.0))
    assert outside.outside == pytest.approx(0.1) and is_flagged(outside)
    assert late.late == pytest.approx(0.06) and is_flagged(late)


def test_scaling_is_by_the_smallest_deployment_of_the_same_setting() -> None:
    each = [(1, 100), (4, 396), (64, 5120)]
    sizes = [one(measured(*size, setting)) for setting in (PLAIN, FLY) for size in each]
    assert scaling(sizes[1], sizes[0]).value == pytest.approx(0.975, abs=0.02)
    plain, fly = scaling_goals(sizes)
    assert plain.measured.value == pytest.approx(0.8) and not plain.is_met
    assert plain.name.startswith(PLAIN) and fly.name.startswith(FLY) and "too slow" not in fly.name
    slow = [Row(**{**vars(each), "distortion": 0.2}) if each.targets == 64 else each for each in sizes]
    assert all("too slow" in bar.name for bar in scaling_goals(slow))


def test_the_dilation_leaves_the_cores_some_room() -> None:
    trial = [measured(1, 1000)]
    own = (4.0 + 3.0 + 1.0) / 10.0 * 20
    assert needed_dilation(64, trial, cores=2) == pytest.approx(own * 64 / (2 * (0.65 - 0.1)), abs=1)
    crowded = [replace(trial[0], machine=MachineUse(1.0, 1.0))]
    assert needed_dilation(64, crowded, cores=2) > 2 * needed_dilation(64, trial, cores=2)
    assert needed_dilation(1, trial, cores=64) == 20.0, "the bursts of one replica need some as well"


def test_activity_is_the_difference_of_samples_and_adds_up_over_processes() -> None:
    before, after = Sample(1, 2, 0, 0, 3, 0, 0, 0), Sample(4, 3, 0, 0, 9, 1, 5, 0)
    assert after - before == Sample(3, 1, 0, 0, 6, 1, 5, 0)
    assert (after - before) + (after - before) == Sample(3, 2, 0, 0, 12, 2, 10, 0)


def test_the_largest_deployment_is_measured_alone() -> None:
    smaller, largest = PLAN.stages(Dilations(30.0, 60.0))
    assert largest.deployments == (Deployment(64, 64, 8, 64 * 31),) and largest.dilation == 60.0
    assert GOODPUT not in largest.settings and smaller.settings == tuple(SETTINGS)
    assert [each.targets for each in smaller.deployments] == [1, 4, 16, 4, 4, 4, 4, 4, 4, 4]
    assert {each.streams for each in smaller.deployments} == {31, 124, 496, 4, 32}
    assert len(PLAN.quick().stages(Dilations(1.0, 1.0))[0].deployments) == 1


def test_a_sample_counts_for_the_part_of_a_request_that_it_was_taken_in() -> None:
    start = ["router.__main__:main", "asyncio.runners:Runner.run"]
    verify = [
        *start,
        "router.generation.generation:generate",
        "router.generation.response:run_round",
        "router.generation.round:verify",
    ]
    stacks = [
        {"stack": start, "samples": 5},
        {"stack": [*verify, "services.common.streams:SequenceStream._exchange"], "samples": 3},
        {"stack": [*start, "router.generation.generation:generate"], "samples": 2},
    ]
    profile = make_profile(stacks, 0.1)
    assert profile.samples == 10 and profile.functions[0] == (OUTSIDE, 0.5)
    assert dict(profile.parts)["verify: a step to the target and back"] == 0.3
    assert dict(profile.packages) == {OUTSIDE: 0.5, "services.common": 0.3, "router.generation": 0.2}


def test_the_report_has_every_figure(tmp_path: Path) -> None:
    sizes = (1, 4, 16, 64)
    settings = ((targets, s) for targets in sizes for s in SETTINGS if targets < 64 or s != GOODPUT)
    figures = tuple(one(measured(targets, 100 * targets, setting)) for targets, setting in settings)
    late = Row(**{**vars(figures[0]), "distortion": 0.2})
    blocks = tuple(
        Block(setting, cost, 1000, rounds, tau)
        for setting, cost, rounds, tau in (
            (PLAIN, 0.3, 1000, 0.0),
            (FLY, 0.09, 100, 10.0),
            (FLY, 0.092, 100, 10.0),
        )
    )
    profile = make_profile([{"stack": ["asyncio.runners:Runner.run"], "samples": 1}], 0.1)
    found = Found(Dilations(30, 60), (late, *figures[1:]), blocks, {FLY: profile})
    report = make_report(this_machine(), PLAN, found)
    page = report.write(tmp_path, tmp_path).read_text()
    assert "64 replicas by 64 times 1 | >= 0.90x | 1.00x" in page and "20.0% !" in page
    assert "tau 10.0, by 0.1 ms | <= 1.00x | 0.91x" in page
    assert "Dilation: 60 for the largest" in page and (tmp_path / "simulate-replicas.svg").is_file()
    assert len(json.loads((tmp_path / "simulate.json").read_text())["figures"]) == len(figures)
    assert any(table.title == "goals" for table in report.tables)
