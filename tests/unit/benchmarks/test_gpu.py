"""The scenario `gpu`: limits, its report on a GPU and on a CPU."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness.machine import this_machine
from benchmarks.harness.report import Report
from benchmarks.scenarios.gpu.plan import CPU, GPU, Case, Device, Plan
from benchmarks.scenarios.gpu.report import NO_KERNELS, Found, make_report
from benchmarks.scenarios.gpu.results import (
    AttentionCost,
    Exactness,
    ForwardTime,
    ForwardTimes,
    GpuFacts,
    KernelTime,
    KernelTimes,
    Limits,
    Probe,
    Served,
    Turn,
)
from benchmarks.scenarios.gpu.serve import EXACT, FLY, PLAIN_NAME

LIMITS = Limits(2.5e12, 3e12, 700e12, 5e-6, {1: 2.4e12, 16: 2.7e12})
CASE = Case(512, 1, 16)
EXACT_BF16 = Exactness("fused forward", "bfloat16", 3, 2, ["token 7 of 100, where"], True, 0.99)
FOUND = Found(
    limits=LIMITS,
    probe=Probe(GpuFacts("G100", 80 * 10**9, 132, "580.1", "13.0", "91900", "2.28"), []),
    exact=[EXACT_BF16, replace(EXACT_BF16, dtype="float32", equal=3, differences=[], verified_equal=1.0)],
    forward=[ForwardTimes("target, 8.0B", "fused", 15 * 10**9, 30.0, 20 * 10**9, 0.011, [])],
    kernels=[],
    serve=[],
    chosen=("probe", "exact", "forward", "kernels", "serve"),
)


def report_of(found: Found, device: Device = GPU) -> Report:
    return make_report(this_machine(), Plan().on(device), found)


def turn(seconds: float, tokens: list[list[int]]) -> Turn:
    return Turn(seconds, tokens, tau=9.5, verify_s=0.02, draft_s=0.004, wire_s=0.001)


def test_a_forward_takes_at_least_what_memory_or_arithmetic_needs() -> None:
    weights = 15 * 10**9
    assert LIMITS.forward_s(weights, 0, 1) == pytest.approx(weights / 3e12), "the better rate of memory"
    assert LIMITS.forward_s(weights, 3 * 10**9, 1) == pytest.approx(18e9 / 3e12)
    assert LIMITS.forward_s(weights, 0, 1024) == pytest.approx(weights * 1024 / 700e12)


def test_the_report_of_a_gpu_compares_forwards_with_the_limit(tmp_path: Path) -> None:
    kv = 3 * 10**9
    forwards = ForwardTimes(
        "target, 8.0B",
        "fused",
        15 * 10**9,
        30.0,
        20 * 10**9,
        0.011,
        [ForwardTime(CASE, kv, 0.012, 0.01, 0.001)],
    )
    plain, fly = [[1, 2, 3, 4], [1, 2]], [[1, 2, 3, 4], [1, 9]]
    ways = {PLAIN_NAME: [turn(2.0, plain)], EXACT: [turn(1.0, plain)], FLY: [turn(0.5, fly)]}
    attention = [AttentionCost(16, True, 0.02, 0.0001)]
    found = replace(
        FOUND,
        probe=Probe(FOUND.probe.gpu if FOUND.probe else None, attention),
        forward=[forwards],
        kernels=[KernelTimes("target, 8.0B", [KernelTime(CASE, 0.012, 0.008)])],
        serve=[Served(8, ways)],
    )
    report = report_of(found)
    page = report.write(tmp_path, tmp_path).read_text("utf-8")
    assert report.is_published and not report.faults
    assert (
        "GPU: G100, 80 GB, 132 multiprocessors; driver 580.1, CUDA 13.0" in page
        and "ran on a CPU" not in page
    )
    assert "| target, 8.0B | 512 | 1 | 16 | 6.00 | 12.00 | 50% | 10.00 | 1.00 |" in page
    assert "| target, 8.0B | 512 | 1 | 16 | 12.00 | 8.00 | 1.50x |" in page
    assert "at least 1.2x as fast (geometric mean): here **1.50x**" in page
    assert "| 16 | allowed | 20.000 | 0.100 |" in page
    assert "| fused forward | bfloat16 | 2 of 3 | yes | 99.0% |" in page
    assert "- bfloat16, fused forward: token 7 of 100" in page
    assert "| 8 | FLy | 12.0 | 4.00x | 4.00 to 4.00 | 9.50 | 50% | 20.00 | 4.00 | 1.00 |" in page
    assert "- serving 32 streams: the time for serving was over (150 s, `serve_s`)" in page
    assert json.loads((tmp_path / "gpu.json").read_text("utf-8"))["limits"]["flops"] == 700e12


def test_the_report_of_a_cpu_says_so_names_what_it_lacks_and_is_not_published() -> None:
    found = replace(FOUND, probe=Probe(None, [AttentionCost(1, None, 0.001, 0.001)]))
    report = report_of(found, CPU)
    assert not report.is_published
    assert "**This ran on a CPU, with tiny models.**" in report.page[:400]
    assert f"- the kernels: {NO_KERNELS}" in report.page
    assert "- attention by cuDNN: " in report.page


def test_a_part_that_failed_and_a_difference_in_float32_are_faults() -> None:
    wrong = replace(EXACT_BF16, dtype="float32")
    found = replace(FOUND, exact=[wrong], forward=None, failures={"forward": "CUDA out of memory"})
    report = report_of(found)
    assert report.faults == [
        "gpu: forward failed: CUDA out of memory",
        "gpu: fused forward: differs from transformers in float32",
    ]
    assert "- forward: CUDA out of memory" in report.page and "## Forwards" not in report.page
    assert not report_of(replace(FOUND, exact=None, chosen=("probe",))).faults
