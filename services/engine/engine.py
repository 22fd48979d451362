"""The engine's interface to its service: open sequences and run jobs on them, from any event loop."""

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from flyserve.core.clock import Clock
from flyserve.core.errors import FieldViolation, InvalidRequest, NotReady, refuse
from flyserve.core.limits import MOST_LOGPROBS, check_sampling
from flyserve.core.messages import Load, ModelInfo, Open, StepTimes
from services.common.grammars.hosted import HostedGrammar
from services.engine.base import Job, RunnerLost, Scorer
from services.engine.config import ModelSection
from services.engine.core import EngineCore
from services.engine.future import Delivery, EngineFuture, IdleJob, WaitReport
from services.engine.grammars import EngineGrammars
from services.engine.scheduling.scheduler import IDLE_PRIORITY
from services.engine.sequence import EngineSequence

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Command:
    """A call of the engine's core, between two forwards.

    Attributes:
        future: The request that it is for; receives the error if the call fails.
    """

    call: Callable[[], None]
    future: EngineFuture | None = None


class Engine(ABC):
    """Runs jobs of many sequences in shared forwards.

    Attributes:
        info: The model; its context length is limited by the KV memory.
    """

    def __init__(
        self, scorer: Scorer, config: ModelSection, clock: Clock, grammars: EngineGrammars | None = None
    ) -> None:
        """Prepare an engine; without `grammars` it keeps no response to a grammar."""
        self._core = EngineCore(
            scorer, config.batch_tokens, config.max_queued, clock, lambda call: self._post(Command(call))
        )
        self._grammars = grammars
        self.info: ModelInfo = replace(scorer.info, context_length=self._core.context_length)
        is_whole = self.info.context_length == scorer.info.context_length
        self._limited_by = "the model" if is_whole else "KV memory"
        self._is_running = False
        self._failure: EngineFuture | None = None

    @property
    def context_length(self) -> int:
        """Longest sequence in tokens that the model and memory allow."""
        return self._core.context_length

    def load(self) -> Load:
        """Return the current load; may be called at any time."""
        return self._core.load()

    async def open(
        self, opening: Open, queue: bool = True, report: WaitReport | None = None
    ) -> EngineSequence:
        """Open a sequence; wait until there is a place and memory for it, unless `queue` is False.

        Its grammar is compiled before, so that the engine never waits for it. `report` is called with
        `Queued` if it has to wait for a place, and with `Opened` when it has one.

        Raises:
            InvalidRequest: A field of `opening` breaks a limit.
            Overloaded: The queue is full, or it would have to wait and `queue` is False.
            NotReady: The engine is not running, or the process that compiles grammars has ended.
        """
        check_open(opening, self.info.vocab_size, self.context_length, self._limited_by)
        grammar = await self._grammar(opening) if opening.grammar else None
        future = self._new_future()
        self._post(Command(partial(self._core.open, opening, future, queue), future))
        try:
            sequence = await future.wait(report)
        except BaseException:
            self._post(Command(partial(self._core.cancel, future)))
            raise
        assert isinstance(sequence, EngineSequence)
        sequence.grammar = grammar
        return sequence

    def close(self, sequence: EngineSequence) -> None:
        """Free the sequence and end its job; return at once. Closing twice does nothing."""
        if self._is_running:
            self._post(Command(partial(self._core.close, sequence)))

    async def run(self, job: Job[T], priority: int = 0) -> T:
        """Run a job and return its result; cancelling the coroutine ends the job before its next forward.

        Its sequence must have no other job, and must not be used until this returns.

        Raises:
            Exception: Any exception of the job, such as `InvalidRequest`.
            InternalError: The model failed on this sequence.
            NotReady: The engine is not running.
        """
        result, _ = await self.run_timed(job, priority)
        return result

    async def run_timed(
        self, job: Job[T], priority: int = 0, report: WaitReport | None = None
    ) -> tuple[T, StepTimes]:
        """Run a job as `run` does; also return its time in the queue and in forwards.

        `report` is called with `Queued` when the sequence begins to wait for memory, because it was
        preempted, and with `Opened` when it has memory again, and after each forward of a long prompt.
        """
        future = self._new_future()
        self._submit(job, priority, future)
        try:
            result, times = await future.wait(report)
        except BaseException:
            self._post(Command(partial(self._core.cancel, future)))
            raise
        return result, times

    def run_when_idle(self, job: Job[Any]) -> IdleJob:
        """Start a job that runs in forwards of its own, only while no other job waits for one.

        Its sequence must not be used until `IdleJob.cancel` returns. No result or exception is reported.

        Raises:
            NotReady: The engine is not running.
        """
        future = self._new_future()
        self._submit(job, IDLE_PRIORITY, future)
        return IdleJob(future, self._cancel)

    async def _cancel(self, future: EngineFuture) -> None:
        """Cancel a job and wait until it has ended; return at once if the engine is stopped."""
        if not self._is_running:
            return
        cancelled = EngineFuture()
        self._post(Command(partial(self._core.cancel, future)))
        self._post(Command(partial(self._core.resolve, cancelled)))
        await cancelled.wait()

    async def failure(self) -> None:
        """Return when a running engine has failed for good.

        Raises:
            NotReady: The engine was never started.
        """
        if self._failure is None:
            raise NotReady("the engine is not running")
        await self._failure.wait()

    @abstractmethod
    async def start(self) -> None:
        """Start the engine; must be called once, before `open` and `run`."""

    @abstractmethod
    async def stop(self) -> None:
        """End all jobs with `NotReady`, and the engine's thread or task; stopping twice does nothing."""

    @abstractmethod
    def _post(self, command: Command) -> None:
        """Queue a command to be called between two forwards."""

    @abstractmethod
    def _now_ns(self) -> int:
        """Return nanoseconds on the engine's clock."""

    def _submit(self, job: Job[Any], priority: int, future: EngineFuture) -> None:
        submit = partial(self._core.submit, job, priority, self._now_ns(), future)
        self._post(Command(submit, future))

    def _carry_out(self, command: Command) -> None:
        """Call a command; if it fails, only its own request ends, unless the runner is lost."""
        try:
            command.call()
        except RunnerLost:
            raise
        except Exception as error:
            self._core.fail_command(command.future, error)

    def _fail(self) -> Sequence[Delivery]:
        """Serve no more, because of the current exception; return the results of all that ended."""
        logger.exception("the engine failed and has stopped serving")
        self._is_running = False
        failed = [(future.loop, future.deliver) for future in (self._failure,) if future is not None]
        return [*failed, *self._abort()]

    def _refuse(self, command: Command) -> Sequence[Delivery]:
        """End what a command to a stopped or failed engine begins; return the results of all that ended."""
        with contextlib.suppress(RunnerLost):
            self._carry_out(command)
        return self._abort()

    def _abort(self) -> Sequence[Delivery]:
        """End all jobs and opens, and return their results; after a failure this may fail in part."""
        try:
            self._core.abort()
        except Exception:
            logger.exception("the end of the engine's jobs failed")
        return self._core.take_deliveries()

    async def _grammar(self, opening: Open) -> HostedGrammar:
        if self._grammars is None:
            raise InvalidRequest.of("grammar", "is set, but this model masks no tokens: leave it out")
        return await self._grammars.compiled(opening.grammar, opening.cache_salt)

    def _new_future(self) -> EngineFuture:
        if not self._is_running:
            raise NotReady("the engine is not running")
        return EngineFuture()


def check_open(opening: Open, vocab_size: int, context_length: int, limited_by: str = "the model") -> None:
    """Raise `InvalidRequest` with a violation for every field that breaks a limit.

    `limited_by` names the resource that sets the context length, in tokens.
    """
    refuse(
        chain(
            _check_fields(opening, context_length, limited_by), check_sampling(opening.sampling, vocab_size)
        )
    )


def _check_fields(opening: Open, context_length: int, limited_by: str) -> Iterator[FieldViolation]:
    length = opening.prompt_length
    if not 0 <= length <= context_length:
        allowed = f"0 to {context_length} (limited by {limited_by})"
        yield FieldViolation("prompt_length", f"is {length}, must be {allowed}")
    asked = opening.num_logprobs
    if asked is not None and not 0 <= asked <= MOST_LOGPROBS:
        yield FieldViolation("num_logprobs", f"is {asked}, must be 0 to {MOST_LOGPROBS}")
