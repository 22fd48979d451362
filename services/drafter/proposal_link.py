"""The link from one sequence at a drafter to a sub-drafter: asks, gives up, backs off, tries another."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from fly.errors import FlyServeError, NotReady
from fly.sequence import TokenSequence
from services.common.backoff import Backoff
from services.common.streams import DrafterStream
from services.common.telemetry.tracing import current_span
from services.drafter.proposer import PASSAGE_TOKENS, Question, RemoteProposer
from services.drafter.worth import Worth

logger = logging.getLogger(__name__)

_SILENCE_S = 1.0
"""A sub-drafter that does not answer for so long is left; nobody waits for it meanwhile."""


class ProposalLink:
    """Carries one proposer's questions to whatever sub-drafter there is, for as long as the sequence lives.

    Attributes:
        proposer: Whose questions it carries.
        is_concluded: Nothing more will be asked.
    """

    def __init__(
        self, open_stream: Callable[[], DrafterStream | None], worth: Worth, vocab_size: int
    ) -> None:
        """Opens streams by `open_stream`, which gives None while there is no sub-drafter."""
        self.proposer = RemoteProposer(self._send, worth, vocab_size)
        self._open_stream = open_stream
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._inbox: deque[Question] = deque()
        self._mirror = TokenSequence()
        self._backoff = Backoff()
        self.is_concluded = False

    async def run(self) -> None:
        """Serves until it is concluded or cancelled; a sub-drafter that fails is left for a while."""
        while not self.is_concluded:
            try:
                await self._converse()
            except FlyServeError as error:
                logger.info("drafting goes on without a sub-drafter: %s", error)
                self.proposer.lost()
                await asyncio.sleep(self._backoff.next_s())
                self.proposer.found()

    def conclude(self, ids: Sequence[int], decided: int) -> None:
        """What the sequence came to: told with the farewell, after which `run` returns."""
        question = Question(0, tuple(ids), decided, 0, 0, 0.0)
        self.is_concluded = True
        self._send(question)

    def _send(self, question: Question) -> None:
        self._inbox.append(question)
        self._loop.call_soon_threadsafe(self._wake.set)

    async def _converse(self) -> None:
        """The life of one stream, which opens with the first question."""
        await self._wake.wait()
        stream = self._open_stream()
        if stream is None:
            raise NotReady("there is none at present")
        async with stream:
            while not self.is_concluded:
                await self._answer_latest(stream)
                await self._wake.wait()
            if (question := self._latest()) is not None:
                stream.conclude(self._mirror, question.decided)

    async def _answer_latest(self, stream: DrafterStream) -> None:
        self._wake.clear()
        question = self._latest()
        if question is None:
            return
        started = time.perf_counter()
        try:
            async with asyncio.timeout(_SILENCE_S):
                draft = await stream.draft(
                    self._mirror, question.decided, question.max_tokens, snippet_tokens=PASSAGE_TOKENS
                )
        except TimeoutError:
            raise NotReady(f"no answer within {_SILENCE_S:g} s") from None
        self._backoff = Backoff()
        _trace_proposal(len(draft.tokens), time.perf_counter() - started)
        self.proposer.answered(question, draft)

    def _latest(self) -> Question | None:
        """The latest question that came in; the mirror takes all of them over."""
        question = None
        while self._inbox:
            question = self._inbox.popleft()
            self._mirror.truncate(question.base)
            self._mirror.extend(question.tail)
        return question


def _trace_proposal(num_tokens: int, seconds: float) -> None:
    span = current_span()
    # The answer may arrive after the end of the drafter's stream.
    if span is not None and span.is_recording():
        span.add_event("proposal", {"seconds": seconds, "tokens": num_tokens})
