"""`flyserve bench`: its options, its report, its table."""

import json
import sys
from pathlib import Path

import pytest

from flyserve.bench.comparison import SETTINGS
from flyserve.cli import bench as bench_command
from tests.unit.flyserve.fake_generation import FakeGeneration, fails_with, run


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "hello"}\n')
    return str(path)


def test_a_running_deployment_is_reached_as_by_every_command(
    served: tuple[FakeGeneration, str], prompts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, address = served
    monkeypatch.setenv("FLYSERVE_ADDRESS", address)
    monkeypatch.setenv("FLYSERVE_TOKEN", "secret")
    result = run("bench", "--prompts", prompts, "--max-new-tokens", "7", "--timeout-s", "600")
    assert result.exit_code == 0, result.output
    assert {call["authorization"] for call in service.metadata} == {"Bearer secret"}
    assert [each.max_new_tokens for each in service.requests] == [7] * 2 * len(SETTINGS)
    assert result.stdout.count(" -") >= 2 * len(SETTINGS), "no answer, so no accuracy"


def test_too_many_problems_name_the_limit(served: tuple[FakeGeneration, str]) -> None:
    fails_with(run("bench", "--problems", "1000000", "--address", served[1]), "--problems", "must be at most")


def test_a_report_that_cannot_be_written_is_named_before_a_request_is_sent(
    served: tuple[FakeGeneration, str], prompts: str
) -> None:
    service, address = served
    into = str(Path(prompts) / "report.json")
    fails_with(
        run("bench", "--prompts", prompts, "--output", into, "--address", address),
        f"{into} cannot be written",
    )
    assert not service.requests


@pytest.mark.skipif(sys.platform != "linux", reason="writes to /dev/full")
def test_a_report_that_finds_no_space_costs_no_table(
    served: tuple[FakeGeneration, str], prompts: str
) -> None:
    result = run("bench", "--prompts", prompts, "--output", "/dev/full", "--address", served[1])
    fails_with(result, "/dev/full cannot be written: No space left on device")
    assert "tokens/s" in result.stdout


def test_a_closed_pipe_costs_no_report(
    served: tuple[FakeGeneration, str], prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed() -> None:
        raise SystemExit(1)

    monkeypatch.setattr(bench_command, "output", closed)
    report = tmp_path / "report.json"
    run("bench", "--prompts", prompts, "--output", str(report), "--address", served[1])
    assert set(json.loads(report.read_text())["measurements"]) == set(SETTINGS)
