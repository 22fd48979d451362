"""A response of the drafters' own model (mode draft): a drafter decodes it, no target takes part."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from flyserve.core.errors import FlyServeError, InvalidAnswer, NotReady, Overloaded
from flyserve.core.messages import Draft, Open
from flyserve.core.round_record import ArrivedDraft, RoundRecord
from flyserve.core.sequence import TokenSequence
from flyserve.core.types import Verdict
from router.generation.context import RouterContext
from router.generation.drafts.drafter_session import check_draft
from router.generation.extension import ExtensionLength
from router.generation.opening import begin, extension_interval_s, open_message
from router.generation.recorder import Recorder
from router.generation.replica_session import ReplicaSession
from router.generation.response import Response
from router.replicas.connections import Connections
from router.replicas.pools import Accepts
from router.replicas.replica import Replica
from router.requests.request import Deadline, PreparedRequest
from services.common.streams import DrafterStream

_RETRY_AFTER_S = 1.0


class StandaloneSession(ReplicaSession[DrafterStream]):
    """Decode at one drafter; after its failure replay the sequence at another one with the same weights.

    Drafters that refuse the sequence are not asked again. A refusal says nothing about drafts for targets.
    """

    tier: ClassVar[str] = "drafter"

    def __init__(
        self, context: RouterContext, request: PreparedRequest, make_open: Callable[[], Open]
    ) -> None:
        """Open nothing yet; `make_open` makes the first message of every stream."""
        serves = context.draft_model.serves
        super().__init__(context.replicas.drafters, context.config, request, make_open, serves)

    async def decode(self, sequence: TokenSequence, max_tokens: int) -> Draft:
        """Return at most `max_tokens` tokens after `sequence`, at least one; a stop token ends them.

        Raises:
            NotReady: No drafter with the same weights is left, or too many failed in a row.
            NoRoom: The drafters that are left hold shorter sequences.
            Overloaded: All drafters refused the sequence.
            InvalidRequest: The drafter rejects the request itself.
            InternalError: The request failed at two drafters.
            DeadlineExceeded: The request's deadline has passed.
        """

        async def decode(stream: DrafterStream) -> Draft:
            draft = await stream.draft(sequence, len(sequence), max_tokens, end_at_stop=True)
            check_draft(draft, max_tokens, self.replica.info.vocab_size)
            if not draft.tokens:
                raise InvalidAnswer("the drafter answered no token")
            return draft

        return await self._run(decode, sequence)

    async def _with_place(self, full: Replica, error: FlyServeError) -> Replica:
        accepts = self._accepts(full)
        if not self._pool.ready(accepts):
            raise error
        return await self._pick(accepts)

    def _no_replica(self, accepts: Accepts) -> NotReady | Overloaded:
        if self._pool.ready(accepts):
            return Overloaded("all drafters are full", _RETRY_AFTER_S)
        return super()._no_replica(accepts)

    def _make_stream(self, replica: Replica) -> DrafterStream:
        return DrafterStream(replica.channel, self._make_open())


@dataclass(slots=True, kw_only=True)
class StandaloneResponse(Response):
    """A response of a drafter alone.

    Attributes:
        extension: Number of tokens of each step.
        most_tokens: Most tokens of one step.
    """

    drafter: StandaloneSession
    extension: ExtensionLength
    most_tokens: int

    @property
    def session(self) -> StandaloneSession:
        return self.drafter

    @property
    def connections(self) -> Sequence[Connections[Any]]:
        return (self.drafter.connections,)

    async def decide_round(self) -> RoundRecord:
        """Let the drafter decode some tokens."""
        speculation, started_s = self.speculation, self.clock.now()
        most = min(self.most_tokens, speculation.tokens_left)
        draft = await self.drafter.decode(speculation.sequence, self.extension.choose(most))
        self.fit_context()
        answered_s = self.clock.now()
        spent_s = answered_s - started_s
        decision = speculation.extend(draft.tokens, verdict=Verdict.DRAFT)
        return RoundRecord(
            is_last=speculation.finish_reason is not None,
            decision=decision,
            started_s=started_s,
            answered_s=answered_s,
            answer_s=spent_s,
            times=draft.times,
            num_decoded=len(draft.tokens),
            arrived=(ArrivedDraft(draft, draft, 0, spent_s),),
        )


@asynccontextmanager
async def open_standalone(
    context: RouterContext, request: PreparedRequest, started: float, deadline: Deadline
) -> AsyncIterator[StandaloneResponse]:
    """Open a session at a drafter, which ends with the block."""
    config = context.config
    async with StandaloneSession(context, request, partial(open_message, request, deadline)) as drafter:
        speculation, text = await begin(request, context.tokenizer)
        extension = ExtensionLength(extension_interval_s(request, config), decodes_ahead=True)
        yield StandaloneResponse(
            request=request,
            speculation=speculation,
            text=text,
            clock=context.clock,
            recorder=Recorder(context, request, speculation.statistics, started, (extension,)),
            drafter=drafter,
            extension=extension,
            most_tokens=config.limits.draft_length,
        )
        if (current := drafter.connections.current) is not None:
            current.stream.conclude(speculation.sequence, speculation.decided_length)
