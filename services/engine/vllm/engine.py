"""A vLLM engine in this process: start it, open sequences on it, report its load, stop it."""

import asyncio
import dataclasses
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fly.errors import FlyServeError, ModelError, describe
from fly.messages import Load, ModelInfo, Open
from services.common.model_source import model_folder
from services.engine.config import VllmConfig
from services.engine.engine import check_open
from services.engine.future import WaitReport
from services.engine.vllm.client import VllmClient
from services.engine.vllm.costs import measure_costs
from services.engine.vllm.library import Library, load_library
from services.engine.vllm.model import describe_model
from services.engine.vllm.places import Places
from services.engine.vllm.requests import TokenRequest
from services.engine.vllm.sequence import Counts, VllmSequence
from services.engine.vllm.watch import EngineStats
from services.engine.vllm_args import engine_arguments, environment

logger = logging.getLogger(__name__)


_OWN_ARGUMENTS = {
    "scheduler_cls": "services.engine.vllm.scheduler.create_scheduler",
    "skip_tokenizer_init": True,
    "disable_log_stats": True,
    "enable_log_requests": False,
}
"""Arguments that no configuration changes; all of them are reserved."""


class VllmEngine:
    """A running vLLM engine, its places and its counters.

    Attributes:
        info: The model.
        client: Requests to vLLM.
        max_logprobs: Most candidates per position.
    """

    def __init__(
        self, info: ModelInfo, client: VllmClient, stats: EngineStats, max_logprobs: int, max_queued: int
    ) -> None:
        self.info = info
        self.max_logprobs = max_logprobs
        self.client, self._stats = client, stats
        self._places = Places(info.max_sequences, max_queued)
        self._sequences: set[VllmSequence] = set()
        self._counts = Counts()

    @asynccontextmanager
    async def open(
        self, opening: Open, report: WaitReport | None = None, waits: bool = True
    ) -> AsyncIterator[VllmSequence]:
        """Open a sequence, as soon as there is a place; with `waits` False it has to be free at once.

        Raises:
            InvalidRequest: A field of `opening` breaks a limit.
            Overloaded: The line is full, or there is no place and `waits` is False.
            NotReady: The engine is not running.
        """
        check_open(opening, self.info.vocab_size, self.info.context_length, "vLLM")
        async with self._places.take(opening.priority, report, waits):
            sequence = VllmSequence(opening, self.info, self.client, self._counts)
            self._sequences.add(sequence)
            try:
                yield sequence
            finally:
                self._sequences.discard(sequence)

    def load(self) -> Load:
        """Return the current load.

        Between its requests a sequence holds no KV in vLLM's books, but needs it again: it counts as used.
        """
        capacity = self.info.kv_capacity
        held = max(sum(map(len, self._sequences)), round(self._stats.kv_usage * capacity))
        return Load(
            sequences=self._places.taken,
            queued=self._places.queued + self._stats.waiting,
            kv_used=min(held, capacity),
            kv_capacity=capacity,
            prefill_tokens=self._counts.prefill_tokens,
            reused_tokens=self._counts.reused_tokens,
            preemptions=self._stats.preemptions,
        )

    async def failure(self) -> None:
        """Return when vLLM has ended or hangs."""
        await self.client.failed.wait()
        self._places.close()

    async def stop(self) -> None:
        """End all sequences with `NotReady`, and vLLM's processes."""
        self._places.close()
        await self.client.stop()


async def start_engine(config: VllmConfig, timeout_s: float = 60.0) -> VllmEngine:
    """Start vLLM with the configuration of a target or a drafter.

    An engine that has work and reports nothing for `timeout_s` has failed.

    Raises:
        ConfigError: An argument is unknown, or FlyServe sets it.
        ModelError: vLLM is missing or has another version, or it refuses the model or an argument.
    """
    library = load_library(config.device, environment(config, os.environ))
    known = {field.name for field in dataclasses.fields(library.arguments_class)}
    assert config.model is not None
    folder = model_folder(config.model)
    arguments = {**engine_arguments(config, folder, known), **_OWN_ARGUMENTS}
    stats = EngineStats()
    llm = _start(library, arguments, stats)
    client = VllmClient(llm, library, stats, timeout_s, _pids(llm))
    try:
        info = describe_model(config, folder, llm.vllm_config, library.version)
        await _warm_up(client)
        info = dataclasses.replace(info, costs=await measure_costs(client, info.context_length))
    except BaseException:
        await client.stop()
        raise
    most = llm.vllm_config.model_config.max_logprobs
    engine = VllmEngine(info, client, stats, _within(most, info.vocab_size), config.max_queued)
    logger.info("%s: vLLM %s, %d KV positions", info.model_id, library.version, info.kv_capacity)
    return engine


def _within(most: int, vocab_size: int) -> int:
    """Return the most candidates; vLLM's -1 stands for the whole vocabulary."""
    return vocab_size if most == -1 else min(most, vocab_size)


def _start(library: Library, arguments: dict[str, Any], stats: EngineStats) -> Any:
    try:
        parsed = library.arguments_class(**arguments)
        return library.engine_class.from_engine_args(parsed, stat_loggers=[lambda *_: stats])
    except FlyServeError:
        raise
    except Exception as error:  # vLLM and its libraries raise many types here
        raise ModelError(f"vLLM rejects {arguments['model']}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Return one line: a validation error of pydantic has its reason behind the first one."""
    reasons = getattr(error, "errors", None)
    if callable(reasons) and (found := reasons()):
        return "; ".join(str(each.get("msg", each)) for each in found)
    return describe(error)


def _pids(llm: Any) -> list[int]:
    """Return the processes that vLLM has started itself; they end with those that they have started."""
    manager = llm.engine_core.resources.engine_manager
    return [process.pid for process in manager.processes]


async def _warm_up(client: VllmClient) -> None:
    """Score and decode once: vLLM compiles parts of itself at their first use."""
    for num_rows, max_tokens in ((2, 1), (0, 2)):
        await client.answer(TokenRequest([1] * 8, num_candidates=8, num_rows=num_rows, max_tokens=max_tokens))
    await asyncio.sleep(0)
