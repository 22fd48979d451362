"""The lines that a person sees while a deployment starts, and those around them."""

import errno
import io
import signal
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from flyserve.cli.notes import mode_note, next_step
from flyserve.cli.start_display import download_display, start_display
from flyserve.cli.up import print_stopping, serve_until_interrupted
from flyserve.core.messages import Role
from flyserve.signals import stop_signals
from orchestration.control.status import ReplicaState, ReplicaStatus
from orchestration.deployment.file import Deployment
from orchestration.local.runner import with_progress
from services.common.config import parse
from services.common.loading_progress import VARIABLE, loading_progress


def shown(is_terminal: bool, rows: list[ReplicaStatus]) -> str:
    console = Console(
        file=io.StringIO(), force_terminal=is_terminal, width=80, no_color=True, highlight=False
    )
    with start_display(console) as (show, end):
        show(rows)
        end()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


_ROWS = [
    ReplicaStatus(Role.TARGET, "target-0", ReplicaState.STARTING, detail="loading weights 41%"),
    ReplicaStatus(Role.SUB_DRAFTER, "sub_drafter-0", ReplicaState.READY),
]


def test_a_terminal_shows_a_line_for_each_replica_without_any_time_limit() -> None:
    seen = shown(True, _ROWS)
    assert "target-0      loading weights 41%" in seen and "sub_drafter-0 ready" in seen
    assert "at most" not in seen and "left" not in seen
    assert all(len(line) <= 80 for line in seen.replace("\r", "\n").splitlines() if "weights" in line)


def test_a_pipe_shows_nothing() -> None:
    assert shown(False, _ROWS) == ""


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_download_shows_its_bytes(is_terminal: bool) -> None:
    console = Console(
        file=io.StringIO(), force_terminal=is_terminal, width=80, no_color=True, highlight=False
    )
    assert isinstance(console.file, io.StringIO)
    with download_display(console, "org/name@main") as report:
        assert "fetching" not in console.file.getvalue()
        report(10**9, 4 * 10**9)
        report(5 * 10**8, 4 * 10**9)  # of another of the client's bars
    seen = console.file.getvalue()
    assert "fetching org/name@main: 4.00 GB" in seen
    assert ("25%" in seen and "1.0/4.0 GB" in seen and "left" in seen) is is_terminal


def test_a_signal_is_answered_in_the_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_signals, "first", signal.SIGINT)
    seen = shown(True, _ROWS)
    assert "stopping" in seen and "target-0" not in seen


def test_the_progress_of_a_load_is_the_detail_of_a_replica_that_starts(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting = ReplicaStatus(Role.TARGET, "target-0", ReplicaState.STARTING)
    assert with_progress(starting, tmp_path).detail == ""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    loading_progress.begin("target-0")
    loading_progress.report(41, 100)
    assert with_progress(starting, tmp_path).detail == "loading weights 41%"
    failed = ReplicaStatus(Role.TARGET, "target-0", ReplicaState.FAILED, detail="no weights")
    assert with_progress(failed, tmp_path).detail == "no weights"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, ("no drafts", "--draft suffix", "drafter: {engine: suffix}")),
        (
            {"drafter": {"engine": "suffix"}},
            ("mode fly: about 4%", "quality.md", "--mode exact", "speculation: {mode: exact}"),
        ),
        (
            {"drafter": {"engine": "suffix"}, "speculation": {"mode": "exact"}},
            ("every token", "--mode fly", "speculation: {mode: fly}"),
        ),
    ],
)
def test_the_mode_and_the_next_step_are_said(content: dict[str, Any], words: tuple[str, ...]) -> None:
    deployment = parse(Deployment, {"target": {"model": "org/name@" + "a" * 40}, **content}, "test")
    assert all(word in mode_note(deployment) for word in words)
    assert next_step(deployment)("127.0.0.1:7") == (
        'model org/name; try: flyserve generate "Once upon a time" --address 127.0.0.1:7'
    )


def deployed(wait: Callable[[Callable[[str], None]], None]) -> Any:
    """Return a deployment that serves while `wait` runs."""
    status = SimpleNamespace(replicas=[], speculation="")
    return SimpleNamespace(
        name="main",
        registry="127.0.0.1:2",
        address="127.0.0.1:1",
        http_url=None,
        status=lambda: status,
        wait=wait,
    )


def test_flyserve_down_ends_up_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    running = deployed(wait=lambda report: None)
    serve_until_interrupted(nullcontext(running), lambda has_drained: None, "try {}".format)
    printed = capsys.readouterr()
    assert "try 127.0.0.1:1" in printed.err.splitlines()
    assert printed.out.splitlines()[-1] == "ready 127.0.0.1:1"
    assert printed.err.splitlines()[-1] == "main was ended by flyserve down: stopped"


class Lost(io.StringIO):
    """A stream to a terminal or a pipe that has closed."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def write(self, text: str, /) -> int:
        raise self._error


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.EIO, "Input/output error")])
def test_a_deployment_that_serves_outlives_its_terminal(
    monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    reported: list[str] = []

    def wait(report: Callable[[str], None]) -> None:
        monkeypatch.setattr("sys.stderr", Lost(error))
        report("the router ended")
        reported.append("the router ended")

    serve_until_interrupted(nullcontext(deployed(wait)), lambda has_drained: None, "try {}".format)
    assert reported
    print_stopping(parse(Deployment, {"target": {"model": "/m"}}, "test"), lambda: True, wait_s=0.0).join()


@pytest.mark.parametrize("has_drained", [True, False])
def test_a_stop_names_the_time_of_responses_only_while_some_run(
    capsys: pytest.CaptureFixture[str], has_drained: bool
) -> None:
    deployment = parse(Deployment, {"target": {"model": "org/name@" + "a" * 40}}, "test")
    print_stopping(deployment, lambda: has_drained, wait_s=0.0).join()
    explained = ["running responses have 300 s to finish; a second Ctrl-C ends them"]
    assert capsys.readouterr().err.splitlines() == ["stopping", *(explained * (not has_drained))]
