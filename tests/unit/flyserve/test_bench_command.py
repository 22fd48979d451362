"""`flyserve bench`: its options, its report, its table."""

import json
import sys
from pathlib import Path

import pytest

from flyserve.bench.comparison import SETTINGS, num_requests
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


def test_a_request_that_fails_costs_no_measurement_before_it(
    served: tuple[FakeGeneration, str], prompts: str, tmp_path: Path
) -> None:
    service, address = served
    service.most_requests = num_requests(2)
    with Path(prompts).open("a") as file:
        file.write('{"prompt": "hi"}\n{"prompt": "ho"}\n')
    report = tmp_path / "report.json"
    result = run("bench", "--prompts", prompts, "--output", str(report), "--address", address)
    fails_with(result, "a fault", status=1)
    assert "2 problems" in result.stdout and "ended early: 2 of 3 problems were measured" in result.stdout
    measured = json.loads(report.read_text())["measurements"]
    assert {name: len(runs) for name, runs in measured.items()} == dict.fromkeys(SETTINGS, 2)


def test_a_prompt_that_is_rejected_is_named_before_anything_is_measured(
    served: tuple[FakeGeneration, str], prompts: str
) -> None:
    with Path(prompts).open("a") as file:
        file.write('{"prompt": "hi"}\n{"prompt": "bad"}\n')
    result = run("bench", "--prompts", prompts, "--address", served[1])
    fails_with(result, "prompts.jsonl:3: request messages need a chat template")
    assert not result.stdout and not served[0].requests


def test_no_report_is_written_over_the_prompts(served: tuple[FakeGeneration, str], prompts: str) -> None:
    text = Path(prompts).read_text()
    result = run("bench", "--prompts", prompts, "--output", prompts, "--address", served[1])
    fails_with(result, f"--output: {prompts} is the file of --prompts, too: name another file")
    assert Path(prompts).read_text() == text


@pytest.mark.parametrize("flag", [["--tls"], ["--tls-root", "ca.pem"]])
def test_tls_needs_the_address_of_a_deployment(flag: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLYSERVE_ADDRESS", raising=False)
    fails_with(run("bench", *flag), "--tls: needs the --address of a deployment")
