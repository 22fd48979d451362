"""A response's side of the target: its stream, and another replica's when that one breaks."""

import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from fly.errors import FlyServeError, InvalidRequest, NotReady, Overloaded
from fly.messages import Open, Verification
from fly.sequence import TokenSequence
from fly.types import SparseDistribution
from router.generation.response_checks import check_verification
from router.generation.step_timeout import StepTimeout
from router.policies.key import RequestKey
from router.replicas.connections import Link, Links
from router.replicas.discovery import Fleet
from router.replicas.pools import Accepts, Replica, with_weights
from services.common.streams import TargetStream

logger = logging.getLogger(__name__)

_MOST_FAILURES_IN_A_ROW = 8


class TargetSide:
    """Verifies with one replica; on its failure with another of the same weights, told from the start.

    Attributes:
        links: Bytes and replays, over all streams.
    """

    def __init__(
        self,
        fleet: Fleet,
        make_opening: Callable[[], Open],
        timeout_s: float,
        wait_s: float,
        num_logprobs: int | None = None,
        key: RequestKey = (),
        weight_fingerprint: str = "",
    ) -> None:
        """Opens nothing yet.

        Args:
            fleet: Where the replicas come from.
            make_opening: Made again for every stream: the deadline comes closer.
            timeout_s: A replica that takes longer for one step is taken for broken.
            wait_s: How long to wait for a replica when there is none.
            num_logprobs: As the opening asks for; None where it asks for none.
            key: Of the prompt, for the policy that picks a replica.
            weight_fingerprint: Of the replicas that will do; all, where it is empty.
        """
        self.links: Links[TargetStream] = Links()
        self._fleet = fleet
        self._make_opening = make_opening
        self._timeout_s = timeout_s
        self._step_timeout = StepTimeout(timeout_s)
        self._wait_s = wait_s
        self._num_logprobs = num_logprobs
        self._key = key
        self._weight_fingerprint = weight_fingerprint
        self._failed: list[Replica] = []
        self._failures_in_a_row = 0
        self._link: Link[TargetStream]

    @property
    def replica(self) -> Replica:
        """The one in use."""
        return self._link.replica

    async def __aenter__(self) -> Self:
        await self._open(await self._pick(with_weights(self._weight_fingerprint)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._step_timeout.close()
        await self.links.leave(error)

    async def verify(
        self,
        sequence: TokenSequence,
        drafts: Sequence[int],
        decided: int,
        distributions: Sequence[SparseDistribution] = (),
    ) -> Verification:
        """Has `drafts` judged after `sequence`, whatever becomes of single replicas.

        Args:
            sequence: What the drafts follow.
            drafts: Tokens to judge.
            decided: Tokens of the sequence that will never be rolled back.
            distributions: What each draft was drawn from, where that counts; else empty.

        Raises:
            NotReady: No replica with the same weights is left, or one after the other failed.
            Overloaded: All of them are full.
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
                verification = await self._link.stream.verify(sequence, drafts, decided, distributions)
        except TimeoutError:
            raise NotReady(f"no answer within {self._timeout_s:g} s") from None
        check_verification(verification, len(drafts), self.replica.info.vocab_size, self._num_logprobs)
        self.replica.served(verification.load)
        self._failures_in_a_row = 0
        return verification

    async def _fail_over(self, error: FlyServeError) -> None:
        """Leaves the replica that failed and opens another; the new stream is told the whole sequence."""
        failed = self.replica
        logger.warning("%s failed in mid-stream: %s", failed.name, error)
        await self.links.abandon(error)
        if not isinstance(error, Overloaded):
            failed.is_broken.set()
        self._failed.append(failed)
        self._failures_in_a_row += 1
        if self._failures_in_a_row > _MOST_FAILURES_IN_A_ROW:
            raise NotReady(f"{self._failures_in_a_row} targets failed one after the other, the last: {error}")
        await self._open(await self._successor(failed, error))

    async def _successor(self, failed: Replica, error: FlyServeError) -> Replica:
        """A replica of the same weights that has not failed this response."""

        def accepts(replica: Replica) -> bool:
            same_weights = replica.info.weight_fingerprint == failed.info.weight_fingerprint
            return same_weights and replica not in self._failed

        while True:
            if isinstance(error, Overloaded) and not self._fleet.targets.ready(accepts):
                raise error
            replica = await self._pick(accepts)
            if await replica.still_serves():
                return replica
            replica.is_broken.set()

    async def _pick(self, accepts: Accepts) -> Replica:
        await self._fleet.targets.wait(accepts, self._wait_s)
        replica = self._fleet.targets.pick(accepts, self._key)
        if replica is None:
            raise NotReady("no target replica is available")
        return replica

    async def _open(self, replica: Replica) -> None:
        stream = TargetStream(replica.channel, self._make_opening())
        self._link = await self.links.open(replica, stream)
