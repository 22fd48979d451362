"""Processes of a local run: signals stop it and hasten the stop; a service that ends is started again."""

import errno
import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import pytest

from flyserve.core.errors import NotReady
from orchestration.local.processes import ServiceProcess, StopSignals, service_process
from orchestration.local.supervisor import RestartLimit, SupervisedService

_SERVICE = """
import pathlib, signal

signals = {signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
print("ready 127.0.0.1:1", flush=True)
signal.sigwait(signals)
pathlib.Path("draining").touch()
signal.sigwait(signals)
"""
"""A service whose running requests never finish: it ends with the second signal."""


def test_a_second_signal_ends_the_grace_period_of_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "service.py").write_text(_SERVICE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ended = threading.Event()

    def signal_again() -> None:
        while not (tmp_path / "draining").exists() and not ended.wait(0.01):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    again = threading.Thread(target=signal_again)
    with StopSignals() as signals:
        with (
            pytest.raises(KeyboardInterrupt),
            service_process(("service",), os.environ, tmp_path, timeout_s=240, grace_s=240) as process,
        ):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                signals.hasten(process)
                again.start()
        ended.set()
        again.join()
    assert process.exit_reason().startswith("ended with status 0")


_CRASHING = """
import os, pathlib, signal, sys

starts = pathlib.Path("starts")
number = len(starts.read_text()) if starts.exists() else 0
starts.write_text("x" * (number + 1))
if number in {broken}:
    sys.exit("error: no luck")
print("ready", *(sys.argv[1:] or ["127.0.0.1:7", "http://127.0.0.1:8"]), flush=True)
if number in {crashing}:
    print("Fatal Python error: Aborted\\n\\nsome stack", file=sys.stderr, flush=True)
    signal.raise_signal(signal.SIGKILL)
signal.pause()
"""
"""A service that counts its starts; those of the numbers in `broken` fail, those in `crashing` crash."""


@pytest.fixture
def supervised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SupervisedService]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(crashing: str, broken: str, *faults: OSError, within_s: float = 3600.0) -> SupervisedService:
        (tmp_path / "service.py").write_text(_CRASHING.format(crashing=crashing, broken=broken))
        left = list(faults)

        def start(addresses: Sequence[str]) -> AbstractContextManager[ServiceProcess]:
            if addresses and left:
                raise left.pop()
            return service_process(("service", *addresses), os.environ, tmp_path, timeout_s=240, grace_s=240)

        return SupervisedService(start, RestartLimit(3, within_s))

    return make


def test_a_service_that_ends_is_started_again_at_its_addresses(
    supervised: Callable[..., SupervisedService],
) -> None:
    lines: list[str] = []
    with supervised("[0]", "[1]") as service:
        first = service.process
        assert first.has_ended(60)
        service.keep_up(0.0, lines.append)
        assert service.process.addresses == first.addresses == ("127.0.0.1:7", "http://127.0.0.1:8")
        assert service.process.pid != first.pid
        service.keep_up(0.0, lines.append)
    crashed, failed, serves = lines
    assert crashed.startswith(
        "the service ended with status -9 (SIGKILL): Fatal Python error: Aborted; restart 1 of at most 3"
    )
    assert Path(crashed.rpartition("log: ")[2]).name == "service-1.log"
    assert "could not be started again: service: no luck; restart 2 of at most 3" in failed
    assert serves == "the service serves again at 127.0.0.1:7, http://127.0.0.1:8"
    assert service.process.exit_reason().startswith("ended with status -15 (SIGTERM)")


def full_disk(count: int) -> list[OSError]:
    return [OSError(errno.ENOSPC, "No space left on device") for _ in range(count)]


def test_a_start_that_finds_no_space_is_tried_again_and_does_not_count(
    supervised: Callable[..., SupervisedService],
) -> None:
    lines: list[str] = []
    with supervised("[0]", "[]", *full_disk(4)) as service:
        assert service.process.has_ended(60)
        service.keep_up(0.0, lines.append)
        assert not service.process.has_ended(0.0)
    _, *failed, serves = lines
    assert len(failed) == 4
    reason = "could not be started again: [Errno 28] No space left on device; restart 1 of at most 3"
    assert all(reason in line for line in failed)
    assert serves.startswith("the service serves again at 127.0.0.1:7")


def test_a_system_that_refuses_starts_for_the_time_of_the_limit_is_an_error(
    supervised: Callable[..., SupervisedService], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda wait_s: now.append(now.pop() + wait_s))
    lines: list[str] = []
    with supervised("[0]", "[]", *full_disk(999), within_s=600.0) as service:
        assert service.process.has_ended(60)
        monkeypatch.setattr("orchestration.local.supervisor.time", clock)
        with pytest.raises(NotReady, match=r"could not be started again: .* No space left on device; it is"):
            service.keep_up(0.0, lines.append)
    assert 600 <= now[0] < 620
    assert "restart 3 of at most 3" in lines[-1] and "restart 1 of at most 3" in lines[-4]


def test_the_logs_of_the_last_three_processes_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "service.py").write_text(_CRASHING.format(crashing="[]", broken="[]"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in (
        "service-8.log",
        "service-9.log",
        "service-10.log",
        "service-two.log",
        "other-service-1.log",
    ):
        (tmp_path / name).touch()
    with service_process(("service",), os.environ, tmp_path, timeout_s=240, grace_s=240) as process:
        assert process.log == tmp_path / "service-11.log"
    names = {path.name for path in tmp_path.glob("*.log")}
    assert names == {
        "service-9.log",
        "service-10.log",
        "service-11.log",
        "service-two.log",
        "other-service-1.log",
    }


def test_a_service_that_ends_too_often_is_an_error(
    supervised: Callable[..., SupervisedService],
) -> None:
    lines: list[str] = []
    with supervised("range(99)", "[]") as service, pytest.raises(NotReady) as ended:
        while True:
            service.keep_up(60.0, lines.append)
    assert len(lines) == 2 * 3
    message = "the service ended with status -9 (SIGKILL): Fatal Python error: Aborted"
    assert str(ended.value) == f"{message}; it is restarted at most 3 times within 3600 s"
