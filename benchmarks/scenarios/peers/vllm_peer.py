"""vLLM next to FlyServe: its own offline engine, and FlyServe on vLLM, in an environment of vLLM's own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.scenarios.peers.plan import Answer
from benchmarks.scenarios.peers.program import Process, ready_word, running
from flyserve.core.errors import ConfigError, NotReady

_STOP_TIMEOUT_S = 30.0
VARIABLE = "VLLM_PYTHON"


def vllm_python(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the interpreter that has vLLM, if the variable `VLLM_PYTHON` names one.

    Raises:
        ConfigError: There is no such program.
    """
    python = environment.get(VARIABLE)
    if python and not os.access(python, os.X_OK):
        raise ConfigError(f"{VARIABLE}: {python} is not a program; name an interpreter that has vLLM")
    return python or None


class OfflineVllm:
    """vLLM's own `generate`, in a process of its own."""

    def __init__(self, process: Process, ending_ids: Sequence[int]) -> None:
        """Use a process that is ready; `ending_ids` end a response."""
        self._process, self._ending_ids = process, list(ending_ids)

    def decode(self, prompt: Sequence[int], max_new_tokens: int) -> Answer:
        """Decode one response, with greedy sampling."""
        tokens, seconds = self.decode_all([prompt], max_new_tokens)
        return Answer(tuple(tokens[0]), seconds)

    def decode_all(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int
    ) -> tuple[list[list[int]], float]:
        """Decode several prompts at once; return the tokens of each, and the seconds of all.

        Raises:
            NotReady: The process has ended.
        """
        prompts = [list(prompt) for prompt in prompts]
        asked = {"prompts": prompts, "max_new_tokens": max_new_tokens, "ending_ids": self._ending_ids}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise NotReady("vLLM's offline engine has ended")
        found: dict[str, Any] = json.loads(line)
        return found["tokens"], found["seconds"]


@contextmanager
def offline_vllm(
    python: str, model: Path, dtype: str, max_sequences: int, ending_ids: Sequence[int]
) -> Iterator[OfflineVllm]:
    """Yield vLLM's offline engine with one thread; its process ends with the block.

    Raises:
        NotReady: It ends before it is ready; the error has its last line.
    """
    program = str(Path(__file__).with_name("vllm_offline.py"))
    with running([python, program, str(model), dtype, str(max_sequences)], ready_word) as (process, _):
        try:
            yield OfflineVllm(process, ending_ids)
        finally:
            # NOTE: not by a signal: it stops the processes of its engine first.
            assert process.stdin is not None
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_TIMEOUT_S)


@contextmanager
def flyserve_on_vllm(python: str, model: Path, dtype: str, max_sequences: int) -> Iterator[str]:
    """Yield the address of a router before a target on vLLM (one thread) and a drafter that looks tokens up.

    All end with the block. NOTE: without Ray, because vLLM's environment is not that of the benchmark.

    Raises:
        NotReady: A process ends before it is ready; the error has its last line.
    """
    target = ["-m", "services.target", "--engine", "vllm", "--model", str(model), "--dtype", dtype]
    target += ["--threads", "1", "--max-sequences", str(max_sequences)]
    drafter = ["-m", "services.lookup", "--role", "drafter", "--engine", "suffix"]
    router = ["-m", "router", "--model", str(model), "--grpc-port", "0", "--http-port", "0"]
    with ExitStack() as stack:

        def start(*command: str) -> str:
            return stack.enter_context(running(command, ready_word))[1]

        replicas = ["--target", start(python, *target), "--drafter", start(sys.executable, *drafter)]
        yield start(sys.executable, *router, *replicas)
