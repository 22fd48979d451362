"""llama.cpp: its server in a process of its own, asked over HTTP on loopback."""

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2

from benchmarks.scenarios.peers.plan import Answer
from benchmarks.scenarios.peers.program import Process, running
from flyserve.core.errors import ConfigError, NotReady

_START_TIMEOUT_S, _TIMEOUT_S, _POLL_S = 120.0, 600.0, 0.1
_CONTEXT_TOKENS = 2048


class LlamaCpp:
    """A running server, which decodes one response at a time."""

    def __init__(self, url: str, ending_ids: Sequence[int]) -> None:
        """Use the server at `url`; its answers omit the stop token, one of `ending_ids`."""
        self._url = url
        self._ending = tuple(ending_ids[:1])

    def decode(self, prompt: Sequence[int], max_new_tokens: int) -> Answer:
        """Decode one response, with greedy sampling and without the cache of an earlier one.

        Raises:
            NotReady: The server does not answer.
        """
        asked = {
            "prompt": list(prompt),
            "n_predict": max_new_tokens,
            "temperature": 0,
            "samplers": ["temperature"],
            "cache_prompt": False,
            "return_tokens": True,
        }
        start = time.perf_counter()
        try:
            response = httpx2.post(f"{self._url}/completion", json=asked, timeout=_TIMEOUT_S)
            found = response.raise_for_status().json()
        except httpx2.HTTPError as error:
            raise NotReady(f"llama.cpp's server does not answer: {error}") from None
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
    url = f"http://127.0.0.1:{port}"
    command = [str(server), "-m", str(model), "--host", "127.0.0.1", "--port", str(port)]
    command += ["-t", "1", "-tb", "1", "-c", str(_CONTEXT_TOKENS), "-np", "1"]
    with running(command, lambda process: _await_health(process, url), has_pipes=False):
        yield LlamaCpp(url, ending_ids)


def _await_health(process: Process, url: str) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise NotReady(f"ended with status {process.returncode}")
        try:
            if httpx2.get(f"{url}/health", timeout=_POLL_S * 10).is_success:
                return
        except httpx2.HTTPError:
            pass  # it does not listen yet
        time.sleep(_POLL_S)
    raise NotReady(f"was not ready after {_START_TIMEOUT_S:.0f} s")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
