"""llama.cpp: its server in a process of its own, asked over HTTP on loopback."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from urllib.request import Request, urlopen

from benchmarks.scenarios.peers.measure import Answer
from fly.errors import ConfigError, NotReady

_START_TIMEOUT_S, _TIMEOUT_S, _STOP_TIMEOUT_S = 120.0, 600.0, 10.0
_CONTEXT_TOKENS = 2048
_POLL_S = 0.1


class LlamaCpp:
    """A running server, which decodes one response at a time."""

    def __init__(self, url: str, ending_ids: Sequence[int]) -> None:
        """Use the server at `url`; its answers omit the stop token, one of `ending_ids`."""
        self._url = url
        self._ending = tuple(ending_ids[:1])

    def decode(self, prompt: Sequence[int], max_new_tokens: int) -> Answer:
        """Decode one response, with greedy sampling and without the cache of an earlier one."""
        asked = {
            "prompt": list(prompt),
            "n_predict": max_new_tokens,
            "temperature": 0,
            "samplers": ["temperature"],
            "cache_prompt": False,
            "return_tokens": True,
        }
        start = time.perf_counter()
        found = _post(f"{self._url}/completion", asked)
        seconds = time.perf_counter() - start
        tokens = tuple(found["tokens"])
        is_ended = found.get("stop_type") == "eos" and tokens[-1:] != self._ending
        return Answer(tokens + self._ending if is_ended else tokens, seconds)


@contextmanager
def llama_cpp(server: Path, model: Path, ending_ids: Sequence[int]) -> Iterator[LlamaCpp]:
    """Yield llama.cpp's server with one thread; its process ends with the block.

    Args:
        server: The program `llama-server`.
        model: GGUF file.
        ending_ids: Stop tokens of the model.

    Raises:
        ConfigError: There is no such program.
        NotReady: It ends, or does not answer in time; the error has its last line.
    """
    if not os.access(server, os.X_OK) or server.is_dir():
        raise ConfigError(f"llama_server: {server} is not a program")
    port = _free_port()
    command = [str(server), "-m", str(model), "--host", "127.0.0.1", "--port", str(port)]
    command += ["-t", "1", "-tb", "1", "-c", str(_CONTEXT_TOKENS), "-np", "1"]
    with TemporaryFile("w+") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(process, url)
            yield LlamaCpp(url, ending_ids)
        except NotReady as error:
            log.seek(0)
            last = (log.read().strip().splitlines() or ["it printed nothing"])[-1]
            raise NotReady(f"{error}; it printed last: {last}") from None
        finally:
            _stop(process)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise NotReady(f"llama.cpp's server ended with status {process.returncode}")
        try:
            with urlopen(f"{url}/health", timeout=_POLL_S * 10):
                return
        except OSError:  # it does not listen yet, or answers 503 while it loads the model
            time.sleep(_POLL_S)
    raise NotReady(f"llama.cpp's server was not ready after {_START_TIMEOUT_S:.0f} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _post(url: str, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    request = Request(url, json.dumps(asked).encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=_TIMEOUT_S) as response:
            found: Mapping[str, Any] = json.load(response)
            return found
    except OSError as error:
        raise NotReady(f"llama.cpp's server does not answer: {error}") from None
