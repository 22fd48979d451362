"""The scenario `open_loop`: loads, the report. AIPerf itself runs in tests/nightly/tools."""

import stat
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.machine import this_machine
from benchmarks.scenarios.open_loop import aiperf
from benchmarks.scenarios.open_loop.aiperf import Aiperf, aiperf_program
from benchmarks.scenarios.open_loop.plan import BASELINE, FLY, Load, Plan
from benchmarks.scenarios.open_loop.report import make_report
from flyserve.core.errors import ConfigError, NotReady


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
    plain = export(1000.0)
    fly = export(400.0, spec_decode_token_weighted_acceptance_length={"avg": 10.1})
    runs = {BASELINE: [plain] * 2, FLY: [fly] * 2}
    report = make_report(Plan(), this_machine(), runs, {Load(0.5).name: runs, Load(0.5, 0.2).name: runs})
    page = report.write(tmp_path, tmp_path).read_text(encoding="utf-8")
    ends = "2.00 | 40 | 80 | 12.5 | 75% | 150 | - |"
    assert f"| 0.5 of the capacity | plain | 40 | 0% | 1.00 | 1.00x | 1.00 to 1.00 | {ends}" in page
    ends = "2.50x | 2.50 to 2.50 | 0.80 | 40 | 80 | 12.5 | 75% | 150 | 10.10 |"
    assert f"| 0.5 of the capacity, in bursts | {FLY} | 40 | 0% | 0.40 | {ends}" in page
    assert f"| {FLY} | 2.00 | 150 | 1.00x | 1.00 to 1.00 |" in page


def test_bursts_have_the_same_rate_and_another_smoothness() -> None:
    poisson, *_, bursts = Plan().loads
    assert (poisson.share, poisson.smoothness, bursts.share, bursts.smoothness) == (0.5, 1.0, 0.5, 0.2)
    assert len({load.name for load in Plan().loads}) == len(Plan().loads)


@pytest.mark.parametrize(
    ("environment", "fault"),
    [({}, "AIPERF: is not set; name the program"), ({"AIPERF": "/none"}, "AIPERF: is '/none', which is not")],
)
def test_a_missing_program_is_named_with_the_remedy(environment: dict[str, str], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        aiperf_program(environment)


def test_a_run_that_fails_is_reported_with_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "aiperf"
    program.write_text("#!/bin/sh\necho no route to the server\nexit 3\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(aiperf, "_served_model", lambda url: "demo")
    client = Aiperf(str(program), "http://127.0.0.1:1", 500, 25)
    with pytest.raises(NotReady, match="AIPerf ended with 3:\nno route to the server"):
        client.run({}, 2, 1)
