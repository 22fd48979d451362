"""Verifiers: programs of a user that judge responses, and their end."""

import os
import signal
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flyserve.calibration.judge import Judge
from flyserve.calibration.prompts import Prompt
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
        (
            "import os; os.abort()",
            r"is ended by SIGABRT on the response to p:1, .* 1 for wrong$",
        ),
        ("print('no such module'); raise SystemExit(2)", "no such module"),
    ],
)
def test_a_verifier_that_fails_is_named(tmp_path: Path, code: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        verifier(tmp_path, code).is_right(Prompt("p:1", "a"), "b")


def test_a_wrong_response_with_a_traceback_is_in_doubt(tmp_path: Path) -> None:
    judge = verifier(tmp_path, "import json, sys; json.load(sys.stdin)['missing']")
    assert not judge.is_right(Prompt("p:1", "a"), "b") and not judge.is_right(Prompt("p:2", "a"), "b")
    (doubt,) = judge.doubts()
    assert doubt.startswith("2 responses were judged wrong") and "p:1: KeyError: 'missing'" in doubt
    sober = verifier(tmp_path, VERIFIER)
    assert not sober.is_right(Prompt("p:1", "a", "4"), "b") and not list(sober.doubts())


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
        with pytest.raises(ConfigError, match="ended by SIGKILL"):
            judging.result()
    with pytest.raises(ConfigError, match="ended by SIGKILL"):  # one that a thread starts later
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


def test_a_verifier_that_prints_without_end_takes_little_memory(tmp_path: Path) -> None:
    code = "import sys\nfor _ in range(64): sys.stdout.write('y' * 2**20)\nprint('\\nfailed'); sys.exit(3)"
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match=r"exits with status 3 .*: failed"):
            verifier(tmp_path, code).is_right(Prompt("p:1", "a"), "b")
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


STARTS = """
import subprocess, sys
child = subprocess.Popen(["sleep", "999"], {options})
open({pid!r}, "w").write(str(child.pid))
"""


def test_a_verifier_that_ends_leaves_no_child(tmp_path: Path) -> None:
    options = "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
    code = STARTS.format(options=options, pid=str(tmp_path / "pid"))
    assert verifier(tmp_path, code).is_right(Prompt("p:1", "a"), "b")
    while is_running((tmp_path / "pid").read_text()):
        time.sleep(0.01)


def test_a_process_that_leaves_the_verifiers_group_delays_no_judgement(tmp_path: Path) -> None:
    code = STARTS.format(options="start_new_session=True", pid=str(tmp_path / "pid"))
    try:
        assert verifier(tmp_path, code, 999.0).is_right(Prompt("p:1", "a"), "b")
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_a_long_input_that_a_verifier_does_not_read_is_dropped(tmp_path: Path) -> None:
    assert verifier(tmp_path, "").is_right(Prompt("p:1", "a"), "b" * 2**20)
