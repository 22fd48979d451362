"""A response's side of the drafter: drafts while there is one, and goes on without while there is none."""

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
from router.policies.key import RequestKey
from router.replicas.connections import Link, Links
from router.replicas.discovery import Fleet
from router.replicas.pools import Replica
from services.common.backoff import Backoff
from services.common.streams import DrafterStream

logger = logging.getLogger(__name__)


class DrafterSide:
    """Drafts with one replica; on its failure with another, no sooner than its back-off allows.

    Attributes:
        links: Bytes and replays, over all streams.
        fault: Why the latest round had no draft; "" where each had one.
    """

    def __init__(
        self,
        fleet: Fleet,
        make_opening: Callable[[], Open],
        timeout_s: float,
        clock: Clock,
        key: RequestKey = (),
    ) -> None:
        """Opens nothing yet; a replica that is silent for `timeout_s` is taken for broken."""
        self.links: Links[DrafterStream] = Links()
        self.fault = ""
        self._fleet = fleet
        self._make_opening = make_opening
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
        await self.links.leave(error)

    async def draft(
        self, target: Replica, sequence: TokenSequence, decided: int, max_tokens: int, end_at_stop: bool
    ) -> Draft | None:
        """At most `max_tokens` after `sequence`, in tokens of `target`; None while there is no drafter."""
        link = self.links.current or await self._open(target)
        if link is None:
            return None
        context_length = link.replica.info.context_length
        if context_length:
            max_tokens = min(max_tokens, context_length - len(sequence))
        if max_tokens <= 0:
            self.fault = f"the drafter's context holds {context_length} tokens"
            return None
        try:
            return await self._draft_here(link, target, sequence, decided, max_tokens, end_at_stop)
        except FlyServeError as error:
            await self._leave(link, error)
            return None

    def conclude(self, sequence: TokenSequence, decided: int) -> None:
        """What the response came to, for those who remember finished ones; told with the farewell."""
        if self.links.current is not None:
            self.links.current.stream.conclude(sequence, decided)

    async def _draft_here(
        self,
        link: Link[DrafterStream],
        target: Replica,
        sequence: TokenSequence,
        decided: int,
        max_tokens: int,
        end_at_stop: bool,
    ) -> Draft:
        try:
            with self._step_timeout:
                draft = await link.stream.draft(sequence, decided, max_tokens, end_at_stop)
        except TimeoutError:
            raise NotReady(f"no answer within {self._timeout_s:g} s") from None
        check_draft(draft, max_tokens, target.info.vocab_size)
        link.replica.served(draft.load)
        return draft

    async def _open(self, target: Replica) -> Link[DrafterStream] | None:
        if self._clock.now() < self._retry_at:
            return None
        replica = self._fleet.drafter_for(target, self._key)
        if replica is None:
            self.fault = "; ".join(self._fleet.misfits(target)) or "no drafter is available"
            return None
        return await self.links.open(replica, DrafterStream(replica.channel, self._make_opening()))

    async def _leave(self, link: Link[DrafterStream], error: FlyServeError) -> None:
        """Gives the replica up for now; a full one is not broken."""
        logger.warning("%s failed in mid-stream: %s", link.replica.name, error)
        self.fault = str(error)
        await self.links.abandon(error)
        if isinstance(error, NotReady):
            link.replica.is_broken.set()
        self._put_off()

    def _put_off(self) -> None:
        """After the first failure the next try comes at once: there may be another drafter."""
        if self._backoff is None:
            self._backoff = Backoff()
        else:
            self._retry_at = self._clock.now() + self._backoff.next_s()
