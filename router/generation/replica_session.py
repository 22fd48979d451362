"""Session of one response with the replicas that it cannot do without: one at a time, with fail-over."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

from flyserve.core.errors import FlyServeError, InternalError, NotReady, Overloaded
from flyserve.core.messages import Draft, Open, Opened, Queued, Verification
from flyserve.core.sequence import TokenSequence
from router.config import RouterConfig
from router.generation.reactions import Reaction, reaction_to
from router.generation.step_timeout import StepTimeout
from router.replicas.connections import Connection, Connections
from router.replicas.pools import Accepts, ReplicaPool, any_replica, with_kernels, with_room, with_weights
from router.replicas.replica import Replica
from router.requests.request import PreparedRequest
from services.common.streams import SequenceStream

logger = logging.getLogger(__name__)

_MAX_FAILURES_IN_A_ROW = 8

S = TypeVar("S", bound=SequenceStream[Any, Any])
Answer = TypeVar("Answer", bound=Verification | Draft)


class NoRoom(NotReady):
    """No replica that is left holds the sequence."""


class ReplicaSession(ABC, Generic[S]):
    """Run steps at one replica; after its failure replay the sequence at another one with the same weights.

    Among these replicas, one with the kernels that have computed the response so far is preferred.

    The time that the sequence waits for its place does not count for the time limit of a step, which begins
    again with each forward of a long prompt.

    Attributes:
        tier: Name of the tier, for messages.
        connections: All connections of this response, with their bytes and replays.
        has_changed_kernels: Replicas with different kernels have computed parts of the response.
    """

    tier: ClassVar[str]

    def __init__(
        self,
        pool: ReplicaPool,
        config: RouterConfig,
        request: PreparedRequest,
        make_open: Callable[[], Open],
        serves: Accepts = any_replica,
    ) -> None:
        """Open nothing yet; `make_open` makes the first message of every stream.

        `serves` accepts the replicas of the pool that can serve the response, of which one with the weights
        and the room that the request needs is taken. A response that may fill the context needs room for a
        usual one; after its first tokens, for the sequence that it has.
        """
        self.connections: Connections[S] = Connections()
        self._pool = pool
        self._make_open = make_open
        self._timeout_s = config.verify_timeout_s
        self._step_timeout = StepTimeout(self._timeout_s)
        self._wait_s = config.replica_wait_s
        self._key = request.key
        self._weight_fingerprint = request.weight_fingerprint
        self._is_open_ended = request.fills_context
        self._least_tokens = request.needed_tokens(config.limits.default_new_tokens)
        self._num_tokens = 0
        self._serves: Accepts = lambda replica: self._has_room(replica) and serves(replica)
        self._failed: list[Replica] = []
        self._failures_in_a_row = 0
        self._was_retried = False
        self._has_answered = False
        self.has_changed_kernels = False
        self._kernels = request.received_kernels
        self._named_kernels = ""
        self._started_s = 0.0
        self._answers_before = 0
        self._connection: Connection[S]

    @property
    def replica(self) -> Replica:
        """The replica in use."""
        return self._connection.replica

    async def __aenter__(self) -> Self:
        has_weights = with_weights(self._weight_fingerprint)
        await self._open(await self._pick(lambda replica: has_weights(replica) and self._serves(replica)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._step_timeout.close()
        await self.connections.end(error)

    @abstractmethod
    def _make_stream(self, replica: Replica) -> S:
        """Return a stream that is not open yet."""

    @abstractmethod
    async def _with_place(self, full: Replica, error: FlyServeError) -> Replica:
        """Return a replica that may have a place, after one has refused the sequence; or raise an error."""

    def _record(self, answer: Any, spent_s: float) -> None:
        """Record the answer to a step."""
        self.replica.record_answer(answer.load)
        kernels, before = self.replica.info.kernels, self._kernels
        self.has_changed_kernels |= bool(before) and kernels != before
        self._kernels = kernels

    def take_kernels(self) -> str:
        """Return the kernels of the last answer; "" if they were returned before."""
        kernels = "" if self._kernels == self._named_kernels else self._kernels
        self._named_kernels = self._kernels
        return kernels

    async def _run(
        self, step: Callable[[S], Awaitable[Answer]], sequence: TokenSequence, num_drafts: int = 0
    ) -> Answer:
        """Run a step at one replica after the other, until it succeeds; it adds a token to the sequence.

        Raise NoRoom if a response that may fill the context is longer than that of each replica left.
        """
        self._num_tokens = len(sequence) + max(1, num_drafts)
        while True:
            try:
                return await self._run_here(step)
            except FlyServeError as error:
                await self._recover(error)

    async def _run_here(self, step: Callable[[S], Awaitable[Answer]]) -> Answer:
        self._start_clock()
        try:
            with self._step_timeout:
                answer = await step(self._connection.stream)
        except TimeoutError:
            if self.replica.num_answers == self._answers_before:
                self.replica.fail()
            raise NotReady(f"no answer within {self._timeout_s:g} s (router.verify_timeout_s)") from None
        self._record(answer, asyncio.get_running_loop().time() - self._started_s)
        self._has_answered, self._was_retried, self._failures_in_a_row = True, False, 0
        if self._is_open_ended:
            self._least_tokens = 0
        return answer

    def _start_clock(self) -> None:
        """Let the time of a step begin now."""
        self._started_s = asyncio.get_running_loop().time()
        self._answers_before = self.replica.num_answers

    def _place_changed(self, message: Queued | Opened) -> None:
        """Stop the clock of a step while its sequence waits for a place; start it with each part of a prompt.

        Neither a full replica is broken, nor one whose prompt takes many forwards.
        """
        if isinstance(message, Queued):
            self._step_timeout.pause()
        else:
            self._step_timeout.restart()
            self._start_clock()

    async def _recover(self, error: FlyServeError) -> None:
        """Leave the replica and open another one, or raise the error; see `Reaction`.

        The first step at another replica replays the whole sequence.
        """
        left, reaction = self.replica, reaction_to(error)
        if reaction is Reaction.RAISE:
            raise error
        await self.connections.cancel(error)
        self._failed.append(left)
        await self._open(await self._next_replica(left, reaction, error))

    async def _next_replica(self, left: Replica, reaction: Reaction, error: FlyServeError) -> Replica:
        match reaction:
            case Reaction.WAIT:
                logger.info("%s is full: %s", left.name, error)
                return await self._with_place(left, error)
            case Reaction.RETRY_ONCE:
                logger.warning("a request failed at %s: %s", left.name, error)
                return self._retry_once(left, error)
            case _:
                logger.warning("%s failed in mid-stream: %s", left.name, error)
                (left.is_broken if reaction is Reaction.LEAVE else left.is_suspect).set()
                return await self._successor(left, error)

    def _retry_once(self, left: Replica, error: FlyServeError) -> Replica:
        """Return another replica after an internal error at the first one; raise the second such error."""
        replica = None if self._was_retried else self._choose(self._accepts(left))
        if replica is None:
            raise InternalError(f"the {self.tier} failed on this request: {error}") from error
        self._was_retried = True
        return replica

    async def _successor(self, left: Replica, error: FlyServeError) -> Replica:
        """Return a healthy replica with the same weights, first one that has not failed for this response."""
        self._failures_in_a_row += 1
        if self._failures_in_a_row > _MAX_FAILURES_IN_A_ROW:
            raise NotReady(
                f"{self._failures_in_a_row} {self.tier}s failed in a row, the last one with: {error}"
            )
        accepts = self._accepts(left)
        if not self._pool.ready(accepts):
            self._failed.clear()
        while True:
            replica = await self._pick(accepts)
            if await replica.is_healthy():
                return replica
            replica.is_broken.set()

    def _accepts(self, left: Replica) -> Accepts:
        """Return a predicate that accepts replicas like the one that was left, unless they failed as well."""
        has_weights, failed = with_weights(left.info.weight_fingerprint), self._failed
        return lambda replica: has_weights(replica) and self._serves(replica) and replica not in failed

    async def _pick(self, accepts: Accepts) -> Replica:
        await self._pool.wait(accepts, self._wait_s)
        replica = self._choose(accepts)
        if replica is None:
            raise self._no_replica(accepts)
        return replica

    def _choose(self, accepts: Accepts) -> Replica | None:
        """Return an accepted replica, if possible with the kernels of the response so far."""
        alike = with_kernels(self._kernels, accepts)
        return self._pool.pick(alike if self._pool.ready(alike) else accepts, self._key, is_needed=True)

    @property
    def _needed_tokens(self) -> int:
        """Length of the sequence for which a replica must have room."""
        return max(self._least_tokens, self._num_tokens)

    def _has_room(self, replica: Replica) -> bool:
        return with_room(self._needed_tokens)(replica)

    def _no_replica(self, accepts: Accepts) -> NotReady | Overloaded:
        """Return the error of a request for which no accepted replica can be picked."""
        alike = self._pool.ready(with_weights(self._weight_fingerprint))
        has_begun = self._is_open_ended and not self._least_tokens
        if has_begun and alike and not any(map(self._has_room, alike)):
            return NoRoom(f"no {self.tier} replica holds {self._needed_tokens} tokens")
        return NotReady(f"no {self.tier} replica is available")

    async def _open(self, replica: Replica) -> None:
        self._has_answered = False
        stream = self._make_stream(replica)
        stream.on_place = self._place_changed
        self._connection = await self.connections.open(replica, stream)
