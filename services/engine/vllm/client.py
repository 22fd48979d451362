"""Requests to a running vLLM engine: each ends with its answer, or with the engine."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

from fly.errors import InternalError, NotReady, describe
from services.engine.vllm.library import Library
from services.engine.vllm.requests import TokenAnswer, TokenRequest
from services.engine.vllm.watch import EngineStats, EngineWatch

logger = logging.getLogger(__name__)

_STOP_S = 5.0
T = TypeVar("T")


def _do_nothing(*_: Any) -> None:
    pass


class VllmClient:
    """The requests of one vLLM engine.

    Attributes:
        failed: Set once the engine has ended or hangs.
    """

    def __init__(
        self, llm: Any, library: Library, stats: EngineStats, timeout_s: float, pids: Iterable[int] = ()
    ) -> None:
        """Take ownership of a running `AsyncLLM`, whose processes are `pids`.

        It has failed if it has work and reports nothing for `timeout_s`.
        """
        self.failed = asyncio.Event()
        self._llm, self._library = llm, library
        self._watch = EngineWatch(pids, stats, timeout_s, self._fail)
        self._numbers = itertools.count()
        self._limits: set[asyncio.Timeout] = set()
        self._reason = ""

    async def answer(self, request: TokenRequest) -> TokenAnswer:
        """Return the answer; cancelling the coroutine ends the request.

        Raises:
            NotReady: The engine has ended, or ends before it answers.
            InternalError: vLLM failed on this request.
        """
        answer = await self._answer(request)
        if request.num_rows and answer.num_cached > request.first_row:
            # NOTE: such rows hold uninitialised memory. The scheduler prevents it; never trust that alone.
            logger.warning("vLLM's cache held scored positions: asking again without it")
            answer = await self._answer(request, reads_cache=False)
            if answer.num_cached > request.first_row:
                raise InternalError("vLLM did not compute the positions that were to be scored")
        return answer

    def wrap(self, wrapper: Callable[[Any], T]) -> T:
        """Send later requests through a wrapper of the engine, such as one that records them."""
        self._llm = wrapped = wrapper(self._llm)
        return wrapped

    async def stop(self) -> None:
        """End all requests with `NotReady`, and vLLM's processes; stopping twice does nothing."""
        if self._llm is not None:
            llm, self._llm = self._llm, None
            self._end("the engine stops")
            await asyncio.to_thread(llm.shutdown, _STOP_S)
            llm.shutdown = _do_nothing  # its finalizer would call it while the interpreter ends

    async def stream(self, request: TokenRequest, reads_cache: bool = True) -> AsyncIterator[TokenAnswer]:
        """Yield the answer in parts, at least one; closing the iterator ends the request.

        Raises what `answer` raises.
        """
        params = request.params(self._library, reads_cache)
        name = f"{request.name}-{next(self._numbers)}"
        async with self._until_failure():
            generation = self._llm.generate(request.prompt(), params, name, priority=-request.priority)
            async with aclosing(generation):
                async for output in generation:
                    if output.outputs[0].token_ids and (output.finished or request.part_tokens):
                        yield TokenAnswer.of(request, output)

    async def _answer(self, request: TokenRequest, reads_cache: bool = True) -> TokenAnswer:
        found: TokenAnswer | None = None
        # NOTE: to the end: vLLM takes a generator that is closed earlier for a request to abort.
        async for answer in self.stream(request, reads_cache):
            found = answer
        if found is None:
            raise InternalError("vLLM ended the request without an answer")
        return found

    @asynccontextmanager
    async def _until_failure(self) -> AsyncIterator[None]:
        """Raise `NotReady` when the engine ends; translate vLLM's errors."""
        if self._reason:
            raise NotReady(self._reason)
        try:
            with self._watch.request():
                async with asyncio.timeout(None) as limit:
                    self._limits.add(limit)
                    try:
                        yield
                    finally:
                        self._limits.discard(limit)
        except TimeoutError:
            raise NotReady(self._reason or "vLLM timed out") from None
        except Exception as error:
            if self._reason or type(error).__name__ == "EngineDeadError":
                self._fail("vLLM's engine has ended")
                raise NotReady(self._reason) from None
            if isinstance(error, InternalError):
                raise
            logger.error("vLLM failed on one request, and only this one ends", exc_info=error)
            raise InternalError(f"vLLM failed on this sequence: {describe(error)}") from error

    def _fail(self, reason: str) -> None:
        if not self._reason:
            logger.error("%s", reason)
            self._end(reason)
            self.failed.set()

    def _end(self, reason: str) -> None:
        """End every request with `NotReady`; refuse later ones."""
        self._reason = self._reason or reason
        self._watch.close()
        for limit in list(self._limits):
            limit.reschedule(asyncio.get_running_loop().time())
