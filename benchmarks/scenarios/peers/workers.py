"""Peers in processes of their own, each with one thread; a worker runs one method at a time."""

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.scenarios.peers.measure import Answer, Decode
from fly.errors import NotReady

_peer: Any = None
"""The peer of this process, if it is a worker."""


class Worker:
    """A process that decodes.

    Attributes:
        description: Description by its peer.
    """

    def __init__(self, pool: ProcessPoolExecutor, *spec: object) -> None:
        self._pool = pool
        self.description: dict[str, Any] = self._run(_load, *spec)

    def ask(self, do: str, **arguments: Any) -> Any:
        """Return what the method `do` of the worker's peer returns.

        Raises:
            NotReady: The method failed, or the worker ended.
        """
        return self._run(_call, do, arguments)

    def decoder(self, method: str) -> Decode:
        """Return decoding by one of its methods."""

        def decode(prompt: Sequence[int], max_new_tokens: int) -> Answer:
            answer: Answer = self.ask("decode", method=method, prompt=prompt, max_new_tokens=max_new_tokens)
            return answer

        return decode

    def _run(self, function: Any, *arguments: object) -> Any:
        try:
            return self._pool.submit(function, *arguments).result()
        except Exception as error:
            raise NotReady(f"a benchmark's worker failed: {type(error).__name__}: {error}") from error


@contextmanager
def worker(kind: str, target: Path, drafter: Path, dtype: str, method: str = "") -> Iterator[Worker]:
    """Yield a worker; it is ready when the block begins, and ends with it.

    Raises:
        NotReady: The peer could not be loaded.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield Worker(pool, kind, target, drafter, str(dtype), method)


def _load(kind: str, target: Path, drafter: Path, dtype: str, method: str) -> Any:
    """Load the peer of this process; return its description."""
    from benchmarks.scenarios.peers.in_process import InProcess
    from benchmarks.scenarios.peers.transformers_peer import TransformersPeer, VerificationRig

    global _peer
    torch.set_num_threads(1)
    if kind == "transformers":
        _peer = TransformersPeer(target, drafter, dtype, method)
    else:
        _peer = {"in process": InProcess, "verification": VerificationRig}[kind](target, drafter, dtype)
    return _peer.describe()


def _call(method: str, arguments: dict[str, Any]) -> Any:
    return getattr(_peer, method)(**arguments)
