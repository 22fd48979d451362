"""The parent's side of the workers: starts them, asks them, ends them."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from benchmarks.peers.settings import Answer, Decode
from fly.errors import NotReady

_ROOT = Path(__file__).resolve().parent.parent.parent
_END_TIMEOUT_S = 10.0
_LAST_WORDS_TIMEOUT_S = 60.0
_ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


class Worker:
    """A process that decodes; one question at a time."""

    def __init__(self, process: "subprocess.Popen[str]", log: IO[str]) -> None:
        self._process = process
        self._log = log
        self.description: dict[str, Any] = self._read()

    def ask(self, do: str, **arguments: Any) -> Any:
        """What the worker's peer answers.

        Raises:
            NotReady: The worker has ended; with its last words.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None
        return self._read()

    def decoder(self, method: str) -> Decode:
        """Decoding by one of its methods."""

        def decode(prompt: Sequence[int], max_new_tokens: int) -> Answer:
            said = self.ask("decode", method=method, prompt=list(prompt), max_new_tokens=max_new_tokens)
            return Answer(tuple(said["tokens"]), said["seconds"], said["tau"])

        return decode

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failure()
        return json.loads(line)

    def _failure(self) -> NotReady:
        self._process.wait(_LAST_WORDS_TIMEOUT_S)
        self._log.seek(0)
        words = self._log.read().strip().splitlines() or ["it said nothing"]
        return NotReady(f"a benchmark's worker ended: {words[-1]}")


@contextmanager
def worker(kind: str, target: Path, drafter: Path, dtype: str, method: str = "") -> Iterator[Worker]:
    """A worker with one thread; it is ready when the block begins, and ends with it.

    Raises:
        NotReady: It did not start; with its last words.
    """
    spec = {"kind": kind, "target": str(target), "drafter": str(drafter), "dtype": dtype, "method": method}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers.worker", json.dumps(spec)],
            cwd=_ROOT,
            env={**os.environ, **_ONE_THREAD},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # a terminal's Ctrl-C reaches only the parent
        )
        try:
            yield Worker(process, log)
        finally:
            _end(process)


def _end(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.communicate(timeout=_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
