"""Signals of a local run: the first one stops it, the second one hastens the stop."""

import os
import signal
import threading
from pathlib import Path

import pytest

from orchestration.local.processes import StopSignals, service_process

_SERVICE = """
import pathlib, signal

print("ready 127.0.0.1:1", flush=True)
signals = {signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
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
    ended = threading.Event()

    def signal_again() -> None:
        while not (tmp_path / "draining").exists() and not ended.wait(0.01):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    again = threading.Thread(target=signal_again)
    with StopSignals() as signals:
        with (
            pytest.raises(KeyboardInterrupt),
            service_process(("service",), os.environ, tmp_path, timeout_s=60, grace_s=60) as process,
        ):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                signals.hasten(process)
                again.start()
        ended.set()
        again.join()
    assert process.exit_reason().startswith("ended with status 0")
