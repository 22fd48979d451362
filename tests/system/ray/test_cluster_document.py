"""The block of docs/cluster.md starts a cluster with the demo, on a machine that has only FlyServe."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from orchestration.local.folder import temporary_folder
from tests.support.documents import snippets
from tests.support.leftovers import MarkedCommand
from tests.support.processes import ROOT

BIN = Path(sys.executable).parent
PROMPT = "Karl has 7 books. Now Karl loses 3 books. How many books does Karl have now?\n"
_OTHERS = ("ray-client-server-port", "dashboard-port", "dashboard-agent-listen-port")
"""Ports that Ray would take on its own: another Ray of this machine may have them."""


def block() -> str:
    """Return the block, with this interpreter's programs and with free ports."""
    (code,) = (
        snippet.code
        for snippet in snippets()
        if snippet.place.startswith("docs/cluster.md") and "ray start --head" in snippet.code
    )
    flags = [f"--{flag}={_free_port()}" for flag in _OTHERS]
    here = {
        "$PWD/.venv/bin": str(BIN),
        "--port=6379": " ".join([f"--port={_free_port()}", "--min-worker-port=0", *flags]),
        "--port 50051": "--port 0",
        "--http-port 8000": "--http-port 0",
    }
    for documented, actual in here.items():
        assert code.count(documented) == 1, documented
        code = code.replace(documented, actual)
    return code


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def bare_machine() -> Iterator[dict[str, str]]:
    """Yield an environment without settings and with an empty home; end in the end what was started in it.

    NOTE: not by `ray stop`, which would end every Ray of this machine.
    """
    command = MarkedCommand()
    kept = {name: command.environment[name] for name in ("PATH", command.mark)}
    with temporary_folder() as folder:
        (folder / "ray").mkdir()
        places = dict.fromkeys(("HOME", "TMPDIR", "RAY_TMPDIR"), str(folder))
        try:
            yield {**kept, **places, "OMP_NUM_THREADS": "1"}
        finally:
            _end(command.leftovers())


def _end(processes: list[psutil.Process]) -> None:
    """Kill processes with their descendants, which may hide their environment behind a title."""
    found = {*processes}
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # It has ended by itself since it was found.
            found.update(process.children(recursive=True))
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(found, timeout=600)


def flyserve(environment: dict[str, str], *arguments: str) -> str:
    command = (str(BIN / "flyserve"), *arguments)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_block_starts_a_cluster_that_answers() -> None:
    with bare_machine() as environment:
        shell = subprocess.Popen(
            ("bash", "-euo", "pipefail", "-c", block()),
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert shell.stdout is not None
        lines = list(iter_until_ready(shell.stdout))
        assert lines[-1].startswith("ready "), lines
        token = Path(environment["HOME"]) / ".ray" / "auth_token"
        assert token.stat().st_mode & 0o077 == 0, "others must not read the token"

        # In another terminal, without any of the block's variables.
        address = lines[-1].split()[1]
        assert flyserve(environment, "generate", PROMPT, "--address", address, "--max-new-tokens", "8")
        tiers = "target 2/2, drafter 1/1, sub_drafter 1/1"
        assert tiers in flyserve(environment, "status").splitlines()
        assert flyserve(environment, "down", "--grace-s", "0") == "default has ended\n"
        os.killpg(shell.pid, signal.SIGINT)
        assert shell.wait(240) in (0, 128 + signal.SIGINT)


def iter_until_ready(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line
        if line.startswith("ready "):
            return
