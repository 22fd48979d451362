"""The scenario `open_loop`: arrivals, summaries, the report. AIPerf itself runs in tests/nightly/tools."""

import stat
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness.machine import this_machine
from benchmarks.scenarios.open_loop.aiperf import Aiperf, Promise, Run, aiperf_program
from benchmarks.scenarios.open_loop.arrivals import Load, arrivals
from benchmarks.scenarios.open_loop.plan import BASELINE, FLY, Plan
from benchmarks.scenarios.open_loop.report import make_report
from fly.errors import ConfigError, NotReady


def export(latency_ms: float, **more: Any) -> dict[str, Any]:
    return {
        "request_count": {"avg": 20.0},
        "good_request_count": {"avg": 15.0},
        "request_throughput": {"avg": 2.0},
        "output_token_throughput": {"avg": 150.0},
        "request_latency": {"p50": latency_ms, "p95": 2 * latency_ms},
        "time_to_first_token": {"p50": 40.0, "p95": 80.0},
        "inter_token_latency": {"p99": 12.5},
        **more,
    }


def test_the_page_has_aiperfs_figures_by_plain_decoding(tmp_path: Path) -> None:
    plain = Run.of(export(1000.0))
    fly = Run.of(export(400.0, spec_decode_token_weighted_acceptance_length={"avg": 10.1}))
    runs = {BASELINE: [plain] * 2, FLY: [fly] * 2}
    report = make_report(Plan(), this_machine(), runs, {Load(0.5).name: runs, Load(0.5, 10).name: runs})
    page = report.write(tmp_path, tmp_path).read_text(encoding="utf-8")
    ends = "2.00 | 40 | 80 | 12.5 | 75% | 150 | - |"
    assert f"| 0.5 of the capacity | plain | 40 | 0% | 1.00 | 1.00x | 1.00 to 1.00 | {ends}" in page
    ends = "2.50x | 2.50 to 2.50 | 0.80 | 40 | 80 | 12.5 | 75% | 150 | 10.10 |"
    assert f"| 0.5 of the capacity, burst of 10x | {FLY} | 40 | 0% | 0.40 | {ends}" in page
    assert f"| {FLY} | 2.00 | 150 | 1.00x | 1.00 to 1.00 |" in page


@given(st.floats(0.5, 20), st.floats(1, 60), st.integers(0, 100), st.sampled_from([1.0, 10.0]))
def test_requests_arrive_in_order_and_within_the_run(
    rate: float, seconds: float, seed: int, burst: float
) -> None:
    times = arrivals(Load(0.5, burst), rate, seconds, seed)
    assert times[0] == 0 and all(0 <= one <= other < seconds for one, other in pairwise(times))
    assert times == arrivals(Load(0.5, burst), rate, seconds, seed)


def test_a_burst_brings_ten_times_the_rate() -> None:
    times = arrivals(Load(0.5, 10), 100.0, 100.0, seed=3)
    inside = sum(50 <= time < 55 for time in times)
    assert inside == pytest.approx(5000, rel=0.1)
    assert len(times) - inside == pytest.approx(9500, rel=0.1)


@pytest.mark.parametrize(
    ("environment", "fault"),
    [({}, "AIPERF: is not set; name the program"), ({"AIPERF": "/none"}, "AIPERF: is '/none', which is not")],
)
def test_a_missing_program_is_named_with_the_remedy(environment: dict[str, str], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        aiperf_program(environment)


def test_a_run_that_fails_tells_its_last_lines(tmp_path: Path) -> None:
    program = tmp_path / "aiperf"
    program.write_text("#!/bin/sh\necho no route to the server\nexit 3\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    client = Aiperf(str(program), "http://127.0.0.1:1", "demo", Promise(500, 25))
    with pytest.raises(NotReady, match="AIPerf ended with 3:\nno route to the server"):
        client.follow({}, [0.0, 1.0])
