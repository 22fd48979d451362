"""Verifiers: programs of a user that judge responses, and their end."""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flyserve.calibration.prompts import Judge, Prompt
from flyserve.core.errors import ConfigError

VERIFIER = (
    "import json, sys; given = json.load(sys.stdin); sys.exit(given['answer'] not in given['response'])"
)


def verifier(tmp_path: Path, code: str, timeout_s: float = 60.0) -> Judge:
    (file := tmp_path / "check.py").write_text(code)
    return Judge(f"{sys.executable} {file}", timeout_s)


def test_a_verifier_judges_by_its_status(tmp_path: Path) -> None:
    judge, prompt = verifier(tmp_path, VERIFIER), Prompt("p:1", "2 + 2 = ?", "4")
    assert judge.is_right(prompt, "it is 4") and not judge.is_right(prompt, "it is five")


@pytest.mark.parametrize(
    "code, part",
    [
        ("raise SystemExit(3)", "exits with status 3 on the response to p:1"),
        ("import os; os.abort()", "exits with status -6"),
        ("print('no such module'); raise SystemExit(2)", "no such module"),
    ],
)
def test_a_verifier_that_fails_is_named(tmp_path: Path, code: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        verifier(tmp_path, code).is_right(Prompt("p:1", "a"), "b")


def test_a_verifier_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(999)'])\n"
        f"open({str(pid)!r}, 'w').write(str(child.pid)); child.wait()"
    )
    with pytest.raises(ConfigError, match=r"did not end within 5 s \(--verifier-timeout-s\)"):
        verifier(tmp_path, code, 5.0).is_right(Prompt("p:1", "a"), "b")
    while pid.exists() and is_running(pid.read_text()):  # a busy machine may not have started the child
        time.sleep(0.01)


def test_a_calibration_that_ends_ends_its_verifiers(tmp_path: Path) -> None:
    os.mkfifo(fifo := tmp_path / "started")
    code = f"import os, time; open({str(fifo)!r}, 'w').write(str(os.getpid())); time.sleep(999)"
    judge, prompt = verifier(tmp_path, code, 999.0), Prompt("p:1", "a")
    with ThreadPoolExecutor(1) as pool:
        judging = pool.submit(judge.is_right, prompt, "b")
        pid = fifo.read_text()
        judge.close()
        with pytest.raises(ConfigError, match="status -9"):
            judging.result()
    with pytest.raises(ConfigError, match="status -9"):  # one that a thread starts later
        judge.is_right(prompt, "b")
    assert not is_running(pid)


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("command", ["no-such-command-at-all", "python 'check.py", " "])
def test_a_verifier_that_cannot_be_run_is_named_before_any_work(command: str) -> None:
    with pytest.raises(ConfigError, match=r"--verifier: .* cannot be run"):
        Judge(command)
