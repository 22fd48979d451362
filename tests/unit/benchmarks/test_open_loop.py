"""The scenario `open_loop`: AIPerf's summary and the report. tests/tools runs AIPerf itself."""

import io
import stat
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.harness.command import Context, Parts
from benchmarks.harness.machine import this_machine
from benchmarks.scenarios.open_loop import BASELINE, FLY, Plan, Run, aiperf_program, make_report, profile
from fly.errors import ConfigError, NotReady


def export(latency_ms: float, **more: Any) -> dict[str, Any]:
    return {
        "request_count": {"avg": 20.0},
        "output_token_throughput": {"avg": 150.0},
        "request_latency": {"p50": latency_ms, "p95": 2 * latency_ms},
        "time_to_first_token": {"p50": 40.0, "p95": 80.0},
        **more,
    }


def test_the_page_has_aiperfs_figures_by_plain_decoding(tmp_path: Path) -> None:
    plain = Run.of(export(1000.0))
    fly = Run.of(export(400.0, spec_decode_token_weighted_acceptance_length={"avg": 10.1}))
    context = Context(this_machine(), Parts(tmp_path, "", False), Console(file=io.StringIO()))
    report = make_report(Plan(), context, {0.5: {BASELINE: [plain] * 2, FLY: [fly] * 2}})
    page = report.write(tmp_path, tmp_path).read_text(encoding="utf-8")
    assert "| 0.5 | plain | 40 | 0% | 1.00 | 1.00x | 1.00 to 1.00 | 2.00 | 40 | 80 | 150 | - |" in page
    assert f"| 0.5 | {FLY} | 40 | 0% | 0.40 | 2.50x | 2.50 to 2.50 | 0.80 | 40 | 80 | 150 | 10.10 |" in page


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
    with pytest.raises(NotReady, match="AIPerf ended with 3:\nno route to the server"):
        profile(str(program), "http://127.0.0.1:1", "demo", {}, 1.0, 2)
