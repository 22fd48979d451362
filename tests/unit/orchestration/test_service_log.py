"""The log of a service of a local run: it keeps within its limit, and its end has the cause."""

import os
import signal
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from orchestration.local import service_log
from orchestration.local.processes import ServiceProcess, service_process
from orchestration.local.service_log import crash_cause, last_line, limit_size
from orchestration.local.supervisor import RestartLimit, SupervisedService

_SERVICE = """
import signal, sys

signals = {signal.SIGUSR1}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
for number in range(100):
    print("line", number, file=sys.stderr)
print("ready 127.0.0.1:1", flush=True)
signal.sigwait(signals)
sys.exit("error: no luck")
"""
"""A service that logs a hundred lines, and one more at its end."""


def test_a_log_keeps_its_newest_lines_and_is_continued_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "service.py").write_text(_SERVICE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(service_log, "MOST_BYTES", 500)

    def start(addresses: Sequence[str]) -> AbstractContextManager[ServiceProcess]:
        return service_process(("service",), os.environ, tmp_path, timeout_s=240, grace_s=240)

    with SupervisedService(start, RestartLimit()) as service:
        service.keep_up(0.0, print)
        process = service.process
        kept = process.log.read_text()
        lines = kept.splitlines()
        assert 10 < len(lines) < 40 and lines == [f"line {number}" for number in range(100)][-len(lines) :]
        os.kill(process.pid, signal.SIGUSR1)
        assert process.has_ended(240)
        assert process.log.read_text() == f"{kept}error: no luck\n"
        assert process.exit_reason() == "ended with status 1: error: no luck"


def test_only_the_end_of_a_log_is_read(tmp_path: Path) -> None:
    """The log would not fit into the memory."""
    log = tmp_path / "service-1.log"
    with log.open("ab") as file:
        file.truncate(2**38)
        file.write(b"\nFatal Python error: Aborted\n\nsome stack\nits end\n")
    assert last_line(log) == "its end"
    assert crash_cause(log) == "Fatal Python error: Aborted"


def test_a_log_that_was_deleted_is_no_error(tmp_path: Path) -> None:
    log = tmp_path / "service-1.log"
    limit_size(log)
    assert (last_line(log), crash_cause(log)) == ("it printed nothing", "")
    assert not log.exists()
