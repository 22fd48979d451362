"""Target session of one response: verify at one replica, fail over to another one."""

import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from fly.errors import FlyServeError, InvalidRequest, NotReady, Overloaded
from fly.messages import Open, Verification
from fly.sequence import TokenSequence
from fly.types import SparseDistribution
from router.generation.step_timeout import StepTimeout
from router.policies.request_key import RequestKey
from router.replicas.connections import Connection, Connections
from router.replicas.directory import ReplicaDirectory
from router.replicas.pools import Accepts, Replica, with_weights
from services.common.streams import TargetStream

logger = logging.getLogger(__name__)

_MAX_FAILURES_IN_A_ROW = 8


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
        num_logprobs: int | None = None,
        key: RequestKey = (),
        weight_fingerprint: str = "",
    ) -> None:
        """Open nothing yet.

        `make_open` makes the first message of every stream, because the remaining time differs. A replica
        that takes longer than `timeout_s` for one step is unhealthy; if there is none, a request waits
        `wait_s` for one. `num_logprobs` is what the first message asks for; an empty `weight_fingerprint`
        accepts any.
        """
        self.connections: Connections[TargetStream] = Connections()
        self._replicas = replicas
        self._make_open = make_open
        self._timeout_s = timeout_s
        self._step_timeout = StepTimeout(timeout_s)
        self._wait_s = wait_s
        self._num_logprobs = num_logprobs
        self._key = key
        self._weight_fingerprint = weight_fingerprint
        self._failed: list[Replica] = []
        self._failures_in_a_row = 0
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
            Overloaded: All replicas are full.
            InvalidRequest: The target rejects the request itself.
            DeadlineExceeded: The request's deadline has passed.
        """
        while True:
            try:
                return await self._verify_here(sequence, drafts, decided, distributions)
            except InvalidRequest:
                raise
            except FlyServeError as error:
                await self._fail_over(error)

    async def _verify_here(
        self,
        sequence: TokenSequence,
        drafts: Sequence[int],
        decided: int,
        distributions: Sequence[SparseDistribution],
    ) -> Verification:
        try:
            with self._step_timeout:
                verification = await self._connection.stream.verify(sequence, drafts, decided, distributions)
        except TimeoutError:
            raise NotReady(f"no answer within {self._timeout_s:g} s") from None
        _check(verification, len(drafts), self.replica.info.vocab_size, self._num_logprobs)
        self.replica.record_answer(verification.load)
        self._failures_in_a_row = 0
        return verification

    async def _fail_over(self, error: FlyServeError) -> None:
        """Leave the failed replica and open another one; its first step replays the whole sequence."""
        failed = self.replica
        logger.warning("%s failed in mid-stream: %s", failed.name, error)
        await self.connections.cancel(error)
        if not isinstance(error, Overloaded):
            failed.is_broken.set()
        self._failed.append(failed)
        self._failures_in_a_row += 1
        if self._failures_in_a_row > _MAX_FAILURES_IN_A_ROW:
            raise NotReady(f"{self._failures_in_a_row} targets failed in a row, the last one with: {error}")
        await self._open(await self._successor(failed, error))

    async def _successor(self, failed: Replica, error: FlyServeError) -> Replica:
        """Return a replica with the same weights that has not failed for this response."""

        def accepts(replica: Replica) -> bool:
            same_weights = replica.info.weight_fingerprint == failed.info.weight_fingerprint
            return same_weights and replica not in self._failed

        while True:
            if isinstance(error, Overloaded) and not self._replicas.targets.ready(accepts):
                raise error
            replica = await self._pick(accepts)
            if await replica.is_healthy():
                return replica
            replica.is_broken.set()

    async def _pick(self, accepts: Accepts) -> Replica:
        await self._replicas.targets.wait(accepts, self._wait_s)
        replica = self._replicas.targets.pick(accepts, self._key)
        if replica is None:
            raise NotReady("no target replica is available")
        return replica

    async def _open(self, replica: Replica) -> None:
        stream = TargetStream(replica.channel, self._make_open())
        self._connection = await self.connections.open(replica, stream)


def _check(answer: Verification, num_drafts: int, vocab_size: int, num_logprobs: int | None) -> None:
    """Raise NotReady if the verification does not fit its step: a fault of the replica, not of the client."""
    positions = num_drafts + 1
    if len(answer.choices) != positions or len(answer.entropies) != positions:
        found = f"{len(answer.choices)} choices and {len(answer.entropies)} entropies"
        raise NotReady(f"the target answered {found} for {positions} positions")
    if max(answer.choices) >= vocab_size:
        raise NotReady(f"the target chose {max(answer.choices)}, its vocabulary ends at {vocab_size}")
    if answer.excluded_drafts and max(answer.excluded_drafts) >= num_drafts:
        raise NotReady(f"the target excludes draft {max(answer.excluded_drafts)} of {num_drafts}")
    if num_logprobs is not None and len(answer.logprobs) != positions:
        raise NotReady(
            f"the target answered {len(answer.logprobs)} log-probabilities for {positions} positions"
        )
