"""Target session of one response: verify at one replica, fail over to another one."""

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from flyserve.core.errors import FlyServeError, InvalidAnswer, Overloaded
from flyserve.core.messages import Open, Verification
from flyserve.core.sequence import TokenSequence
from flyserve.core.types import SparseDistribution
from router.generation.context import RouterContext
from router.generation.replica_session import ReplicaSession
from router.replicas.replica import Replica
from router.requests.request import PreparedRequest
from services.common.streams import TargetStream

WaitForPlace = Callable[[], Awaitable[None]]
"""Wait in the router's queue until a target has a place for the sequence."""


class TargetSession(ReplicaSession[TargetStream]):
    """Verify at one replica; after its failure replay the sequence at another one with the same weights."""

    tier: ClassVar[str] = "target"

    def __init__(
        self,
        context: RouterContext,
        request: PreparedRequest,
        make_open: Callable[[], Open],
        wait_for_place: WaitForPlace,
        measures_pace: bool = True,
    ) -> None:
        """Open nothing yet; `make_open` makes the first message of every stream.

        `measures_pace` is False if the steps are much longer than those of rounds.
        """
        super().__init__(context.replicas.targets, context.config, request, make_open)
        self._wait_for_place = wait_for_place
        self._measures_pace = measures_pace
        self._is_extension = False
        self._num_logprobs: int | None = None
        self._needs_entropies = True

    async def verify(
        self,
        sequence: TokenSequence,
        drafts: Sequence[int],
        decided: int,
        distributions: Sequence[SparseDistribution] = (),
    ) -> Verification:
        """Score `drafts` after `sequence`; fail over between replicas as necessary.

        The answer ends before a draft after which the request leaves the target no token to choose.
        The first `decided` tokens of the sequence will never be rolled back. `distributions` has the one that
        each draft was drawn from (coupling `rejection`), else nothing.

        Raises:
            NotReady: No replica with the same weights is left, or too many failed in a row.
            NoRoom: The replicas that are left hold shorter sequences.
            Overloaded: All replicas have too little memory to continue the sequence.
            InvalidRequest: The target rejects the request itself.
            InternalError: The request failed at two replicas.
            DeadlineExceeded: The request's deadline has passed.
        """

        async def verify(stream: TargetStream) -> Verification:
            verification = await stream.verify(sequence, drafts, decided, distributions)
            num_positions = max(1, min(len(drafts) + 1, len(verification.choices)))
            self._check(verification, num_positions - 1, num_positions, self._needs_entropies)
            return verification

        self._is_extension = False
        return await self._run(verify, sequence, len(drafts))

    async def extend(self, sequence: TokenSequence, decided: int, max_tokens: int) -> Verification:
        """Let the target decode at most `max_tokens` tokens; return one position per token.

        No rule judges these tokens: the target may leave out their entropies unless log-probabilities are
        requested. Arguments and errors are those of `verify`.
        """
        without_entropies = self._num_logprobs is None

        async def extend(stream: TargetStream) -> Verification:
            extension = await stream.extend(sequence, decided, max_tokens, without_entropies)
            num_tokens = max(1, min(max_tokens, len(extension.choices)))
            self._check(extension, 0, num_tokens, self._needs_entropies and not without_entropies)
            return extension

        self._is_extension = True
        return await self._run(extend, sequence)

    def _record(self, answer: Verification, spent_s: float) -> None:
        super()._record(answer, spent_s)
        if self._measures_pace:
            num_forwards = len(answer.choices) if self._is_extension else 1
            is_usual = self._has_answered and not answer.times.prefill_tokens
            self.replica.pace.record(spent_s / num_forwards, is_usual)

    async def _with_place(self, full: Replica, error: FlyServeError) -> Replica:
        """Return a replica that may have a place; wait in the router's queue if no other replica is left.

        A replica that answered before has no place problem: it cannot continue the sequence.
        """
        full.record_refusal(error.retry_after_s if isinstance(error, Overloaded) else 0.0)
        accepts = self._accepts(full)
        if self._pool.ready(accepts):
            return await self._pick(accepts)
        if self._has_answered:
            raise error
        await self._wait_for_place()
        self._failed.clear()
        await self._pool.pause(accepts)
        return await self._pick(accepts)

    def _check(
        self, answer: Verification, num_drafts: int, num_positions: int, needs_entropies: bool
    ) -> None:
        """Raise InvalidAnswer if the answer does not fit its step, which is a fault of the replica."""
        vocab_size = self.replica.info.vocab_size
        wanted = num_positions if needs_entropies or answer.entropies else 0
        if len(answer.choices) != num_positions or len(answer.entropies) != wanted:
            found = f"{len(answer.choices)} choices and {len(answer.entropies)} entropies"
            raise InvalidAnswer(f"the target answered {found} for {num_positions} positions")
        if max(answer.choices) >= vocab_size:
            raise InvalidAnswer(
                f"the target chose {max(answer.choices)}, its vocabulary ends at {vocab_size}"
            )
        if answer.gaps and len(answer.gaps) != num_drafts:
            raise InvalidAnswer(f"the target answered {len(answer.gaps)} gaps for {num_drafts} drafts")
        if answer.excluded_drafts and max(answer.excluded_drafts) >= num_drafts:
            raise InvalidAnswer(f"the target excludes draft {max(answer.excluded_drafts)} of {num_drafts}")
        if self._num_logprobs is not None and len(answer.logprobs) != num_positions:
            raise InvalidAnswer(
                f"the target answered {len(answer.logprobs)} log-probabilities for {num_positions} positions"
            )
        if any(position.draft is None for position in answer.logprobs[:num_drafts]):
            raise InvalidAnswer("the target answered no log-probability of a draft")

    def _make_stream(self, replica: Replica) -> TargetStream:
        opening = self._make_open()
        self._num_logprobs, self._needs_entropies = opening.num_logprobs, not opening.without_entropies
        return TargetStream(replica.channel, opening)
