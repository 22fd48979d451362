"""The benchmark of telemetry's cost: its clock, its ratios, its report."""

import json
import os
import time
from pathlib import Path

import pytest

from benchmarks.harness.machine import this_machine
from benchmarks.harness.system import process_cpu_s
from benchmarks.scenarios.telemetry import OFF, Plan, compare, make_report, settings
from services.common.config import parse
from services.common.telemetry.config import TelemetryConfig


def test_the_clock_is_that_of_the_whole_process() -> None:
    own, before = time.process_time(), process_cpu_s(os.getpid())
    while time.process_time() < own + 0.05:
        pass
    assert process_cpu_s(os.getpid()) - before == pytest.approx(time.process_time() - own, abs=0.02)


def test_every_setting_can_be_parsed_and_the_first_is_off() -> None:
    parsed = {
        name: parse(TelemetryConfig, section, name) for name, section in settings("http://here:1").items()
    }
    assert next(iter(parsed)) == OFF and parsed[OFF] == TelemetryConfig()
    traced = [config for config in parsed.values() if config.otlp_endpoint]
    assert [config.trace_ratio for config in traced] == [TelemetryConfig().trace_ratio, 1.0]


def test_ratios_are_of_the_same_repetition(tmp_path: Path) -> None:
    blocks = {OFF: [100.0, 200.0, 400.0], "metrics": [105.0, 210.0, 420.0]}
    off, metrics = compare(blocks, "plain")
    assert (off.cpu_us, off.ratio.value) == (200.0, 1.0)
    assert metrics.ratio.value == metrics.ratio.low == metrics.ratio.high == pytest.approx(1.05)
    page = make_report(this_machine(), Plan(), [off, metrics], 7).write(tmp_path, tmp_path).read_text()
    assert "| plain | metrics | 210.0 | 1.050 (1.050-1.050) |" in page and "7 spans" in page
    assert json.loads((tmp_path / "telemetry.json").read_text())["costs"][1]["setting"] == "metrics"
