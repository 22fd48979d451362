"""The scenario `gpu`: limits, its report on a GPU and on a CPU."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness.load import Window
from benchmarks.harness.machine import this_machine
from benchmarks.harness.report import Report
from benchmarks.scenarios.gpu.plan import CPU, GPU, Case, Device, Plan
from benchmarks.scenarios.gpu.report import Found, make_report
from benchmarks.scenarios.gpu.results import Device as Limits
from benchmarks.scenarios.gpu.results import Exactness, ForwardTime

LIMITS = Limits("G100, 80 GB, 132 multiprocessors; driver 580.1, CUDA 13.0.", 3e12, 700e12)
EXACT_BF16 = Exactness("fused forward", "bfloat16", 3, 2, ["token 7 of 100, where"], True, 0.99)
FORWARD = ForwardTime("target, 8.0B", Case(512, 1, 16), 15 * 10**9, 3 * 10**9, 0.012, 0.01)
FOUND = Found(
    device=LIMITS,
    exact=[EXACT_BF16, replace(EXACT_BF16, dtype="float32", equal=3, differences=[], verified_equal=1.0)],
    forward=[FORWARD],
    serve=[],
)


def report_of(found: Found, device: Device = GPU) -> Report:
    return make_report(this_machine(), Plan().on(device), found)


def window(setting: str, tokens: int) -> Window:
    return Window(setting, 8, 0, tokens, 2.0, (0.25,), ((0.04, 4),), 1, 30, 4)


def test_a_forward_takes_at_least_what_memory_or_arithmetic_needs() -> None:
    weights = 15 * 10**9
    assert LIMITS.forward_s(weights, 3 * 10**9, 1) == pytest.approx(18e9 / 3e12)
    assert LIMITS.forward_s(weights, 0, 1024) == pytest.approx(weights * 1024 / 700e12)


def test_a_plan_for_a_cpu_has_tiny_models_and_few_measurements() -> None:
    plan = Plan()
    assert plan.on(GPU).cases == plan.cases and plan.on(GPU).streams == (1, 8, 32)
    target = plan.on(GPU).pair.target.num_parameters(plan.on(GPU).pair.vocab_size)
    drafter = plan.on(GPU).pair.drafter.num_parameters(plan.on(GPU).pair.vocab_size)
    assert 8.0e9 < target < 8.1e9 and 1.4e9 < drafter < 1.6e9
    tiny = replace(plan, noise=0.2).on(CPU)
    assert tiny.pair.target.num_parameters(tiny.pair.vocab_size) < 1e6 and tiny.pair.noise == 0.2
    assert max(case.context for case in tiny.cases) < tiny.pair.context_length
    assert tiny.chaos.target == tiny.pair.drafter and tiny.chaos.noise > tiny.pair.noise


def test_the_report_of_a_gpu_compares_forwards_with_the_limit(tmp_path: Path) -> None:
    serve = [window("plain", 100), window("exact", 150), window("FLy", 400)]
    report = report_of(replace(FOUND, serve=serve))
    page = report.write(tmp_path, tmp_path).read_text("utf-8")
    assert report.is_published and not report.faults
    assert "GPU: G100, 80 GB, 132 multiprocessors; driver 580.1, CUDA 13.0." in page
    assert "at 3,000 GB/s" in page and "at 700 TFLOPS" in page and "ran on a CPU" not in page
    assert "| target, 8.0B | 512 | 1 | 16 | 6.00 | 12.00 | 50% | 10.00 |" in page
    assert "| fused forward | bfloat16 | 2 of 3 | yes | 99.0% |" in page
    assert "- bfloat16, fused forward: token 7 of 100" in page
    assert "## 8 concurrent requests" in page and "| FLy | 200 | 200 to 200 | 4.00x |" in page
    assert "- serving 32 streams: the time for serving was over (150 s, `serve_s`)" in page
    assert json.loads((tmp_path / "gpu.json").read_text("utf-8"))["device"]["flops"] == 700e12


def test_the_report_of_a_cpu_says_so_and_is_not_published() -> None:
    report = report_of(replace(FOUND, device=replace(LIMITS, name="")), CPU)
    assert not report.is_published
    assert "**This ran on a CPU, with tiny models.**" in report.page[:400]


def test_a_part_that_failed_and_a_difference_in_float32_are_faults() -> None:
    wrong = replace(EXACT_BF16, dtype="float32")
    found = replace(FOUND, exact=[wrong], forward=None, failures={"forward": "CUDA out of memory"})
    report = report_of(found)
    assert report.faults == [
        "gpu: forward failed: CUDA out of memory",
        "gpu: fused forward: differs from transformers in float32",
    ]
    assert "- forward: CUDA out of memory" in report.page and "## Forwards" not in report.page
    assert not report_of(replace(FOUND, exact=None)).faults
