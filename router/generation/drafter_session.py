"""Drafter session of one response: get drafts while a drafter is available, continue without otherwise."""

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

from fly.clock import Clock
from fly.errors import FlyServeError, NotReady
from fly.messages import Draft, Open
from fly.sequence import TokenSequence
from router.generation.response_checks import check_draft
from router.generation.step_timeout import StepTimeout
from router.policies.request_key import RequestKey
from router.replicas.connections import Connection, Connections
from router.replicas.directory import ReplicaDirectory
from router.replicas.pools import Replica
from services.common.channel import Backoff
from services.common.streams import DrafterStream

logger = logging.getLogger(__name__)


class DrafterSession:
    """Get drafts from one replica; after its failure from another one, no sooner than the back-off allows.

    Attributes:
        connections: All connections of this response, with their bytes and replays.
        fault: Reason why the latest round without a draft had none; "" if every round had one.
    """

    def __init__(
        self,
        replicas: ReplicaDirectory,
        make_open: Callable[[], Open],
        timeout_s: float,
        clock: Clock,
        key: RequestKey = (),
    ) -> None:
        """Open nothing yet. A replica that does not answer a step within `timeout_s` is unhealthy."""
        self.connections: Connections[DrafterStream] = Connections()
        self.fault = ""
        self._replicas = replicas
        self._make_open = make_open
        self._timeout_s = timeout_s
        self._step_timeout = StepTimeout(timeout_s)
        self._clock = clock
        self._key = key
        self._backoff: Backoff | None = None
        self._retry_at = clock.now()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._step_timeout.close()
        await self.connections.end(error)

    async def draft(
        self, target: Replica, sequence: TokenSequence, decided: int, max_tokens: int, end_at_stop: bool
    ) -> Draft | None:
        """Return at most `max_tokens` tokens after `sequence`; None while no drafter is available."""
        connection = self.connections.current or await self._open(target)
        if connection is None:
            return None
        context_length = connection.replica.info.context_length
        if context_length:
            max_tokens = min(max_tokens, context_length - len(sequence))
        if max_tokens <= 0:
            self.fault = f"the sequence has reached the drafter's context length of {context_length} tokens"
            return None
        try:
            return await self._draft_here(connection, target, sequence, decided, max_tokens, end_at_stop)
        except FlyServeError as error:
            await self._drop(connection, error)
            return None

    def conclude(self, sequence: TokenSequence, decided: int) -> None:
        """Attach the final sequence to the closing message, for services that cache finished responses."""
        if self.connections.current is not None:
            self.connections.current.stream.conclude(sequence, decided)

    async def _draft_here(
        self,
        connection: Connection[DrafterStream],
        target: Replica,
        sequence: TokenSequence,
        decided: int,
        max_tokens: int,
        end_at_stop: bool,
    ) -> Draft:
        try:
            with self._step_timeout:
                draft = await connection.stream.draft(sequence, decided, max_tokens, end_at_stop)
        except TimeoutError:
            raise NotReady(f"no answer within {self._timeout_s:g} s") from None
        check_draft(draft, max_tokens, target.info.vocab_size)
        connection.replica.record_answer(draft.load)
        return draft

    async def _open(self, target: Replica) -> Connection[DrafterStream] | None:
        if self._clock.now() < self._retry_at:
            return None
        replica = self._replicas.drafter_for(target, self._key)
        if replica is None:
            self.fault = "; ".join(self._replicas.incompatibilities(target)) or "no drafter is available"
            return None
        return await self.connections.open(replica, DrafterStream(replica.channel, self._make_open()))

    async def _drop(self, connection: Connection[DrafterStream], error: FlyServeError) -> None:
        """Stop using the replica for now; a full one is not broken."""
        logger.warning("%s failed in mid-stream: %s", connection.replica.name, error)
        self.fault = str(error)
        await self.connections.cancel(error)
        if isinstance(error, NotReady):
            connection.replica.is_broken.set()
        self._back_off()

    def _back_off(self) -> None:
        """Set the time of the next try.

        After the first failure it is now, because there may be another drafter.
        """
        if self._backoff is None:
            self._backoff = Backoff()
        else:
            self._retry_at = self._clock.now() + self._backoff.next_s()
