"""Drafter session of one response: get drafts while a drafter is available, continue without otherwise."""

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

from flyserve.core.errors import FlyServeError, InvalidAnswer, NotReady, Overloaded
from flyserve.core.limits import check_distributions
from flyserve.core.messages import Draft, Open
from flyserve.core.round_record import ArrivedDraft
from flyserve.core.sequence import TokenSequence
from router.generation.context import RouterContext
from router.generation.drafts.outstanding import OutstandingDraft
from router.generation.drafts.source import WantedDraft
from router.generation.reactions import Reaction, reaction_to
from router.generation.step_timeout import StepTimeout
from router.replicas.breaker import Breaker
from router.replicas.connections import Connection, Connections
from router.replicas.drafters import Assignment
from router.replicas.pools import Accepts, with_room
from router.replicas.replica import Replica
from router.requests.request import PreparedRequest
from services.common.streams import DrafterStream

logger = logging.getLogger(__name__)

_MOST_WORK = 30_000
"""Largest count of one draft that is believed: the sum over the longest response has room in 32 bits."""


class DrafterSession:
    """Get drafts from one replica; after its failure at once from another one, if one has not failed yet.

    Those that have failed are asked again if no other is left, no sooner than the back-off allows. One draft
    is outstanding at a time: `request` one, wait until it `arrives`, and `take` it. A draft that is late goes
    on in the background. A replica that is full refuses at once, and is avoided until it may have a place
    again. One that rejects the request itself is not asked again for this response.

    Attributes:
        connections: All connections of this response, with their bytes and replays.
        fault: Reason why the latest request for a draft failed; "" if none did.
    """

    def __init__(
        self,
        context: RouterContext,
        request: PreparedRequest,
        make_open: Callable[[], Open],
    ) -> None:
        """Open nothing yet; `make_open` makes the first message of every stream.

        A replica that does not answer a step in time is probed and left.
        """
        self.connections: Connections[DrafterStream] = Connections()
        self.fault = ""
        self._replicas = context.replicas
        self._make_open = make_open
        self._timeout_s = context.config.draft_timeout_s
        self._step_timeout = StepTimeout(self._timeout_s)
        self._key = request.key
        self._end_at_stop = request.plan.end_at_stop
        self._breaker = Breaker(context.clock)
        self._refusing: list[Replica] = []
        self._failed: set[str] = set()
        self._outstanding: OutstandingDraft | None = None
        self._task: asyncio.Task[None] | None = None
        self._num_answers = 0
        self._assignment: Assignment | None = None
        self._num_judged = self._num_accepted = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._task is not None and not self._task.done():
                self._task.cancel()
                error = error or NotReady("the response has ended")
                await asyncio.wait((self._task,))
        finally:
            self._step_timeout.close()
            self._assign(None)
            await self.connections.end(error)

    @property
    def is_drafting(self) -> bool:
        """True if a draft was requested and not taken yet."""
        return self._outstanding is not None

    @property
    def alarm(self) -> str:
        """The alarm about the drafter of the latest draft; empty if there is none."""
        return "" if self._assignment is None else self._assignment.alarm

    def request(self, wanted: WantedDraft, max_tokens: int) -> bool:
        """Request a draft of at most `max_tokens`, which needs no wait; return False if that is impossible.

        No draft may be outstanding.
        """
        connection, has_room = self.connections.current, with_room(len(wanted.sequence) + 1)
        if connection is not None and has_room(connection.replica):
            replica: Replica | None = connection.replica
        else:
            replica = self._pick(wanted.target, has_room)
        if replica is None:
            if connection is not None:  # without room there, its place is for another sequence
                self._task = asyncio.create_task(self._leave())
            return False
        if context_length := replica.info.context_length:
            max_tokens = min(max_tokens, context_length - len(wanted.sequence))
        self._outstanding = OutstandingDraft(replica, max_tokens)
        self._task = asyncio.create_task(self._draft(self._outstanding, wanted))
        return True

    async def arrives(self, limit_s: Callable[[float, int], float]) -> bool:
        """Wait for the outstanding draft; return True if it has arrived, or has failed.

        `limit_s` returns the seconds after the request for which to wait at most, from the replica's usual
        seconds of a draft and the requested length.
        """
        outstanding = self._outstanding
        assert outstanding is not None, "a draft must be requested first"
        if not outstanding.has_ended:
            limit = limit_s(outstanding.replica.pace.usual_s or 0.0, outstanding.max_tokens)
            await outstanding.ends(outstanding.requested_s + limit)
        return outstanding.has_ended

    def take(self, sequence: TokenSequence, most: int) -> ArrivedDraft | None:
        """Return at most `most` tokens after `sequence` of the draft that has arrived; None if it failed."""
        outstanding, self._outstanding = self._outstanding, None
        assert outstanding is not None, "a draft must have arrived"
        draft, connection = outstanding.result, self.connections.current
        if draft is None or connection is None:
            return None
        num_confirmed = connection.stream.num_common(sequence) - connection.stream.draft_start
        fits = num_confirmed == len(sequence) - connection.stream.draft_start >= 0
        cut = cut_draft(draft, num_confirmed, most) if fits else cut_draft(draft, len(draft.tokens))
        arrived = ArrivedDraft(cut, draft, max(0, num_confirmed))
        # NOTE: a sequence that was rolled back to before the draft says nothing about it.
        if num_confirmed >= 0:
            self.record_accepted(num_confirmed, len(draft.tokens) if arrived.is_dropped else num_confirmed)
        return arrived

    def record_accepted(self, num_accepted: int, num_drafts: int) -> None:
        """Record the accepted tokens of the latest draft, and those that could have been accepted."""
        self._num_judged += min(num_accepted + 1, num_drafts)
        self._num_accepted += num_accepted

    def conclude(self, sequence: TokenSequence, decided: int) -> None:
        """Attach the final sequence to the closing message, for services that cache finished responses."""
        if self.connections.current is not None:
            self.connections.current.stream.conclude(sequence, decided)

    async def _draft(self, outstanding: OutstandingDraft, wanted: WantedDraft) -> None:
        """Get the draft; errors are handled here."""
        result = None
        try:
            connection = self.connections.current
            if connection is None or connection.replica is not outstanding.replica:
                connection = await self._open(outstanding.replica)
            result = await self._step(connection, wanted, outstanding.max_tokens)
        except FlyServeError as error:
            await self._drop(outstanding.replica, error)
        finally:
            outstanding.end(result)

    async def _step(
        self, connection: Connection[DrafterStream], wanted: WantedDraft, max_tokens: int
    ) -> Draft:
        loop, replica = asyncio.get_running_loop(), connection.replica
        started_s, answers_before = loop.time(), replica.num_answers
        try:
            with self._step_timeout:
                draft = await connection.stream.draft(
                    wanted.sequence, wanted.decided, max_tokens, self._end_at_stop
                )
        except TimeoutError:
            # NOTE: the first step of a stream computes the prompt, which may take longer at a sound drafter.
            if self._num_answers and replica.num_answers == answers_before:
                replica.fail()
            raise NotReady(f"no answer within {self._timeout_s:g} s (router.draft_timeout_s)") from None
        # NOTE: before the answer counts: a replica that never fits its steps must not be tried without delay.
        check_draft(draft, max_tokens, wanted.target.info.vocab_size)
        replica.record_answer(draft.load)
        replica.pace.record(loop.time() - started_s, is_usual=self._num_answers > 0)
        self._num_answers += 1
        return draft

    async def _open(self, replica: Replica) -> Connection[DrafterStream]:
        """Open a stream in place of the one at a replica without room, if there is one."""
        await self._leave()
        self._num_answers = 0
        return await self.connections.open(replica, DrafterStream(replica.channel, self._make_open()))

    async def _leave(self) -> None:
        """End the stream at a replica without room, if there is one."""
        await self.connections.cancel(NotReady("the sequence has reached the drafter's context length"))

    def _pick(self, target: Replica, has_room: Accepts) -> Replica | None:
        found = self._find(target, has_room)
        if found is None and self._failed:
            if self._breaker.wait_s:
                return None
            self._failed.clear()
            found = self._find(target, has_room)
        if found is None and not self._refusing:
            self.fault = self._replicas.no_drafter_reason(target, has_room)
        self._assign(found)
        return None if found is None else found.replica

    def _find(self, target: Replica, has_room: Accepts) -> Assignment | None:
        """Return a drafter with room that has neither refused the request nor failed."""
        refusing, failed = self._refusing, self._failed
        return self._replicas.drafter_for(
            target,
            self._key,
            lambda each: each not in refusing and each.address not in failed and has_room(each),
        )

    def _assign(self, assignment: Assignment | None) -> None:
        """Record the acceptance of the drafter's drafts; those of another drafter follow."""
        if self._assignment is not None:
            self._assignment.record(self._num_judged, self._num_accepted)
        self._assignment, self._num_judged, self._num_accepted = assignment, 0, 0

    async def _drop(self, replica: Replica, error: FlyServeError) -> None:
        """Stop using the replica for now; see `Reaction`."""
        reaction = reaction_to(error)
        self.fault = str(error)
        await self.connections.cancel(error)
        if isinstance(error, Overloaded):
            replica.record_refusal(error.retry_after_s)
            return
        if reaction is Reaction.RAISE:
            logger.info("%s does not draft for a request: %s", replica.name, error)
            self._refusing.append(replica)
            return
        logger.warning("%s failed in mid-stream: %s", replica.name, error)
        self._failed.add(replica.address)
        self._breaker.record_failure()
        if reaction is Reaction.LEAVE:
            replica.is_broken.set()
        elif reaction is Reaction.PROBE:
            replica.is_suspect.set()


def cut_draft(draft: Draft, start: int, most: int = 0) -> Draft:
    """Return at most `most` tokens of a draft from position `start` on, with all that belongs to them.

    Counts of tokens follow; the work is that of the whole draft.
    """
    end = min(len(draft.tokens), start + most)
    if end - start == len(draft.tokens):
        return draft
    num_ahead = max(0, min(draft.drafted_ahead, end) - start)
    return draft._replace(
        tokens=draft.tokens[start:end],
        distributions=draft.distributions[start:end],
        sub_drafter_tokens=min(draft.sub_drafter_tokens, max(0, end - start)),
        drafted_ahead=num_ahead,
        dropped_ahead=draft.dropped_ahead + draft.drafted_ahead - num_ahead,
    )


def check_draft(draft: Draft, max_tokens: int, vocab_size: int) -> None:
    """Raise InvalidAnswer if the draft is too long, or has invalid tokens, counts or distributions."""
    if len(draft.tokens) > max_tokens:
        raise InvalidAnswer(
            f"the drafter answered {len(draft.tokens)} tokens, at most {max_tokens} were requested"
        )
    if draft.tokens and max(draft.tokens) >= vocab_size:
        raise InvalidAnswer(f"the drafter proposed {max(draft.tokens)}, the vocabulary ends at {vocab_size}")
    counts = draft.forwards, draft.sub_drafter_tokens, draft.drafted_ahead, draft.dropped_ahead
    if (most := max(*counts, *draft.proposals)) > _MOST_WORK:
        raise InvalidAnswer(f"the drafter counted {most} for one draft, at most {_MOST_WORK} are believed")
    if faults := [*check_distributions(draft.distributions, draft.tokens, vocab_size)]:
        raise InvalidAnswer(f"the drafter returned invalid {faults[0].field}: {faults[0].description}")
