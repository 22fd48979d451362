"""llama.cpp: its server in a process of its own, asked over HTTP on loopback."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2

from benchmarks.harness.program import running
from benchmarks.scenarios.peers.plan import Answer
from flyserve.core.errors import NotReady

_TIMEOUT_S = 600.0
_SCRIPT = Path(__file__).with_name("llama_server.py")


class LlamaCpp:
    """A running server, which decodes one response at a time."""

    def __init__(self, client: httpx2.Client, ending_ids: Sequence[int]) -> None:
        """Use the server of `client`; its answers omit the stop token, one of `ending_ids`."""
        self._client = client
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
            response = self._client.post("/completion", json=asked)
        except httpx2.HTTPError as error:
            raise NotReady(f"llama.cpp's server does not answer: {error}") from None
        seconds = time.perf_counter() - start
        if not response.is_success:
            raise NotReady(f"llama.cpp's server answers {response.status_code}: {response.text}")
        found = response.json()
        tokens = tuple(found["tokens"])
        is_ended = found.get("stop_type") == "eos" and tokens[-1:] != self._ending
        return Answer(tokens + self._ending if is_ended else tokens, seconds)


@contextmanager
def llama_cpp(
    model: Path, threads: int, ngram: str, ending_ids: Sequence[int], script: Path = _SCRIPT
) -> Iterator[LlamaCpp]:
    """Yield llama.cpp's server; its process ends with the block.

    Args:
        model: GGUF file.
        threads: Threads that decode.
        ngram: Kind of its look-up; "" is none.
        ending_ids: Stop tokens of the model.
        script: Program that reports the server's URL.

    Raises:
        NotReady: It ends before it serves; the error has its last line.
    """
    flags = (str(model), str(threads), *filter(None, [ngram]))
    with (
        running(sys.executable, script, *flags) as program,
        httpx2.Client(base_url=program.word, timeout=_TIMEOUT_S, trust_env=False) as client,
    ):
        yield LlamaCpp(client, ending_ids)
