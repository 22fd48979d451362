"""Target session of one response: verify at one replica, fail over to another one."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self

from fly.errors import FlyServeError, InternalError, NotReady, Overloaded
from fly.messages import Open, Opened, Queued, Verification
from fly.sequence import TokenSequence
from fly.types import SparseDistribution
from router.generation.reactions import InvalidAnswer, Reaction, reaction_to
from router.generation.step_timeout import StepTimeout
from router.policies.request_key import RequestKey
from router.replicas.connections import Connection, Connections
from router.replicas.directory import ReplicaDirectory
from router.replicas.pools import Accepts, Replica, with_weights
from services.common.streams import TargetStream

logger = logging.getLogger(__name__)

_MAX_FAILURES_IN_A_ROW = 8

WaitForPlace = Callable[[], Awaitable[None]]
"""Wait in the router's queue until a target has a place for the sequence."""


class TargetSession:
    """Verify at one replica; after its failure replay the sequence at another one with the same weights.

    Attributes:
        connections: All connections of this response, with their bytes and replays.
    """

    def __init__(
        self,
        replicas: ReplicaDirectory,
        make_open: Callable[[], Open],
        timeout_s: float,
        wait_s: float,
        wait_for_place: WaitForPlace,
        num_logprobs: int | None = None,
        key: RequestKey = (),
        weight_fingerprint: str = "",
        needs_entropies: bool = True,
        measures_pace: bool = True,
    ) -> None:
        """Open nothing yet.

        `make_open` makes the first message of every stream, because the remaining time differs. A replica
        that takes longer than `timeout_s` for one step, without the time that the sequence waits for its
        place, is probed and left; if there is none, a request waits `wait_s` for one. `num_logprobs` is what
        the first message asks for, as `needs_entropies`; an empty `weight_fingerprint` accepts any.
        `measures_pace` is False if the steps are much longer than those of rounds.
        """
        self.connections: Connections[TargetStream] = Connections()
        self._replicas = replicas
        self._make_open = make_open
        self._timeout_s = timeout_s
        self._step_timeout = StepTimeout(timeout_s)
        self._wait_s = wait_s
        self._num_logprobs, self._needs_entropies = num_logprobs, needs_entropies
        self._key = key
        self._weight_fingerprint = weight_fingerprint
        self._wait_for_place = wait_for_place
        self._measures_pace = measures_pace
        self._failed: list[Replica] = []
        self._failures_in_a_row = 0
        self._was_retried = False
        self._has_answered = False
        self._started_s = 0.0
        self._connection: Connection[TargetStream]

    @property
    def replica(self) -> Replica:
        """The replica in use."""
        return self._connection.replica

    async def __aenter__(self) -> Self:
        await self._open(await self._pick(with_weights(self._weight_fingerprint)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._step_timeout.close()
        await self.connections.end(error)

    async def verify(
        self,
        sequence: TokenSequence,
        drafts: Sequence[int],
        decided: int,
        distributions: Sequence[SparseDistribution] = (),
    ) -> Verification:
        """Score `drafts` after `sequence`; fail over between replicas as necessary.

        The first `decided` tokens of the sequence will never be rolled back. `distributions` has the one that
        each draft was drawn from (coupling `rejection`), else nothing.

        Raises:
            NotReady: No replica with the same weights is left, or too many failed in a row.
            Overloaded: All replicas have too little memory to continue the sequence.
            InvalidRequest: The target rejects the request itself.
            InternalError: The request failed at two replicas.
            DeadlineExceeded: The request's deadline has passed.
        """

        async def verify(stream: TargetStream) -> Verification:
            verification = await stream.verify(sequence, drafts, decided, distributions)
            self._check(verification, num_drafts=len(drafts), num_positions=len(drafts) + 1)
            return verification

        return await self._run(verify)

    async def extend(self, sequence: TokenSequence, decided: int, max_tokens: int) -> Verification:
        """Let the target decode at most `max_tokens` tokens; return one position per token.

        Arguments and errors are those of `verify`.
        """

        async def extend(stream: TargetStream) -> Verification:
            extension = await stream.extend(sequence, decided, max_tokens)
            num_tokens = max(1, min(max_tokens, len(extension.choices)))
            self._check(extension, num_drafts=0, num_positions=num_tokens)
            return extension

        return await self._run(extend, is_extension=True)

    async def _run(
        self, step: Callable[[TargetStream], Awaitable[Verification]], is_extension: bool = False
    ) -> Verification:
        """Run a step at one replica after the other, until it succeeds."""
        while True:
            try:
                return await self._run_here(step, is_extension)
            except FlyServeError as error:
                await self._recover(error)

    async def _run_here(
        self, step: Callable[[TargetStream], Awaitable[Verification]], is_extension: bool
    ) -> Verification:
        loop = asyncio.get_running_loop()
        self._started_s = loop.time()
        try:
            with self._step_timeout:
                verification = await step(self._connection.stream)
        except TimeoutError:
            raise NotReady(f"no answer within {self._timeout_s:g} s (router.verify_timeout_s)") from None
        self.replica.record_answer(verification.load)
        is_usual = self._has_answered and not verification.times.prefill_tokens
        num_forwards = len(verification.choices) if is_extension else 1
        if self._measures_pace:
            self.replica.pace.record((loop.time() - self._started_s) / num_forwards, is_usual)
        self._has_answered, self._was_retried, self._failures_in_a_row = True, False, 0
        return verification

    def _place_changed(self, message: Queued | Opened) -> None:
        """Stop the clock of a step while its sequence waits for a place: a full replica is not broken."""
        if isinstance(message, Queued):
            self._step_timeout.pause()
        else:
            self._step_timeout.restart()
            self._started_s = asyncio.get_running_loop().time()

    async def _recover(self, error: FlyServeError) -> None:
        """Leave the replica and open another one, or raise the error; see `Reaction`.

        The first step at another replica replays the whole sequence.
        """
        left, reaction = self.replica, reaction_to(error)
        if reaction is Reaction.RAISE:
            raise error
        await self.connections.cancel(error)
        self._failed.append(left)
        if reaction is Reaction.WAIT:
            left.record_refusal(error.retry_after_s if isinstance(error, Overloaded) else 0.0)
        await self._open(await self._next_replica(left, reaction, error))

    async def _next_replica(self, left: Replica, reaction: Reaction, error: FlyServeError) -> Replica:
        match reaction:
            case Reaction.WAIT:
                return await self._with_place(left, error)
            case Reaction.RETRY_ONCE:
                logger.warning("a request failed at %s: %s", left.name, error)
                return self._retry_once(left, error)
            case _:
                logger.warning("%s failed in mid-stream: %s", left.name, error)
                (left.is_broken if reaction is Reaction.LEAVE else left.is_suspect).set()
                return await self._successor(left, error)

    async def _with_place(self, full: Replica, error: FlyServeError) -> Replica:
        """Return a replica that may have a place; wait in the router's queue if no other replica is left.

        A replica that answered before has no place problem: it cannot continue the sequence.
        """
        logger.info("%s is full: %s", full.name, error)
        accepts = self._accepts(full)
        if self._replicas.targets.ready(accepts):
            return await self._pick(accepts)
        if self._has_answered:
            raise error
        await self._wait_for_place()
        self._failed.clear()
        return await self._pick(accepts)

    def _retry_once(self, left: Replica, error: FlyServeError) -> Replica:
        """Return another replica after an internal error at the first one; raise the second such error."""
        accepts = self._accepts(left)
        replica = None if self._was_retried else self._replicas.targets.pick(accepts, self._key)
        if replica is None:
            raise InternalError(f"the target failed on this request: {error}") from error
        self._was_retried = True
        return replica

    async def _successor(self, left: Replica, error: FlyServeError) -> Replica:
        """Return a healthy replica with the same weights; first one that has not failed for this response."""
        self._failures_in_a_row += 1
        if self._failures_in_a_row > _MAX_FAILURES_IN_A_ROW:
            raise NotReady(f"{self._failures_in_a_row} targets failed in a row, the last one with: {error}")
        accepts = self._accepts(left)
        if not self._replicas.targets.ready(accepts):
            self._failed.clear()
        while True:
            replica = await self._pick(accepts)
            if await replica.is_healthy():
                return replica
            replica.is_broken.set()

    def _accepts(self, left: Replica) -> Accepts:
        """Return a predicate that accepts replicas like the one that was left, unless they failed as well."""
        weights = left.info.weight_fingerprint
        return lambda replica: replica.info.weight_fingerprint == weights and replica not in self._failed

    def _check(self, answer: Verification, num_drafts: int, num_positions: int) -> None:
        """Raise InvalidAnswer if the answer does not fit its step, which is a fault of the replica."""
        vocab_size = self.replica.info.vocab_size
        wanted = num_positions if self._needs_entropies or answer.entropies else 0
        if len(answer.choices) != num_positions or len(answer.entropies) != wanted:
            found = f"{len(answer.choices)} choices and {len(answer.entropies)} entropies"
            raise InvalidAnswer(f"the target answered {found} for {num_positions} positions")
        if max(answer.choices) >= vocab_size:
            raise InvalidAnswer(
                f"the target chose {max(answer.choices)}, its vocabulary ends at {vocab_size}"
            )
        if answer.excluded_drafts and max(answer.excluded_drafts) >= num_drafts:
            raise InvalidAnswer(f"the target excludes draft {max(answer.excluded_drafts)} of {num_drafts}")
        if self._num_logprobs is not None and len(answer.logprobs) != num_positions:
            raise InvalidAnswer(
                f"the target answered {len(answer.logprobs)} log-probabilities for {num_positions} positions"
            )
        if any(position.draft is None for position in answer.logprobs[:num_drafts]):
            raise InvalidAnswer("the target answered no log-probability of a draft")

    async def _pick(self, accepts: Accepts) -> Replica:
        await self._replicas.targets.wait(accepts, self._wait_s)
        replica = self._replicas.targets.pick(accepts, self._key)
        if replica is None:
            raise NotReady("no target replica is available")
        return replica

    async def _open(self, replica: Replica) -> None:
        stream = TargetStream(replica.channel, self._make_open())
        stream.on_place = self._place_changed
        self._has_answered = False
        self._connection = await self.connections.open(replica, stream)
