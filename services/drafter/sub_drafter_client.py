"""The client of a sub-drafter for one sequence: send requests, time out, back off, use another replica."""

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
from services.drafter.cost_model import SpeculationBenefit
from services.drafter.remote_proposer import SNIPPET_TOKENS, ProposalRequest, RemoteProposer

logger = logging.getLogger(__name__)

_RESPONSE_TIMEOUT_S = 1.0
"""Time without a response after which the stream is closed; drafting does not wait for it."""


class SubDrafterClient:
    """The connection of one proposer to an available sub-drafter, for the lifetime of the sequence.

    Attributes:
        proposer: The source of the requests.
        is_finished: The final sequence is queued; no request follows it.
    """

    def __init__(
        self, open_stream: Callable[[], DrafterStream | None], benefit: SpeculationBenefit, vocab_size: int
    ) -> None:
        """Create a client.

        Args:
            open_stream: Open a stream to a sub-drafter; return None while there is none.
            benefit: The cost model that all sequences share.
            vocab_size: Valid ids of a response lie below it.
        """
        self.proposer = RemoteProposer(self._send, benefit, vocab_size)
        self.is_finished = False
        self._open_stream = open_stream
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._inbox: deque[ProposalRequest] = deque()
        self._sequence = TokenSequence()
        self._backoff = Backoff()

    async def run(self) -> None:
        """Send requests until the sequence is finished or the task cancelled; back off after a failure."""
        while not self.is_finished:
            try:
                await self._use_stream()
            except FlyServeError as error:
                logger.info("drafting continues without a sub-drafter: %s", error)
                self.proposer.suspend()
                await asyncio.sleep(self._backoff.next_s())
                self.proposer.resume()

    def finish(self, ids: Sequence[int], decided: int) -> None:
        """Queue the final sequence, which the close of the stream carries; then `run` returns."""
        self.is_finished = True
        self._send(
            ProposalRequest(
                base=0, tail=tuple(ids), decided=decided, max_tokens=0, prefix_hash=0, sent_at=0.0
            )
        )

    def _send(self, request: ProposalRequest) -> None:
        self._inbox.append(request)
        self._loop.call_soon_threadsafe(self._wake.set)

    async def _use_stream(self) -> None:
        """Open one stream at the first request and send requests until it breaks or the sequence ends."""
        await self._wake.wait()
        stream = self._open_stream()
        if stream is None:
            raise NotReady("no sub-drafter is available")
        async with stream:
            while not self.is_finished:
                await self._send_latest(stream)
                await self._wake.wait()
            if (request := self._latest()) is not None:
                stream.conclude(self._sequence, request.decided)

    async def _send_latest(self, stream: DrafterStream) -> None:
        self._wake.clear()
        request = self._latest()
        if request is None:
            return
        started = time.perf_counter()
        try:
            async with asyncio.timeout(_RESPONSE_TIMEOUT_S):
                draft = await stream.draft(
                    self._sequence, request.decided, request.max_tokens, snippet_tokens=SNIPPET_TOKENS
                )
        except TimeoutError:
            raise NotReady(f"no response within {_RESPONSE_TIMEOUT_S:g} s") from None
        self._backoff = Backoff()
        _trace_proposal(len(draft.tokens), time.perf_counter() - started)
        self.proposer.receive(request, draft)

    def _latest(self) -> ProposalRequest | None:
        """Return the latest request, after all requests in the inbox have updated the sequence."""
        request = None
        while self._inbox:
            request = self._inbox.popleft()
            self._sequence.truncate(request.base)
            self._sequence.extend(request.tail)
        return request


def _trace_proposal(num_tokens: int, seconds: float) -> None:
    span = current_span()
    # The answer may arrive after the end of the drafter's stream.
    if span is not None and span.is_recording():
        span.add_event("proposal", {"seconds": seconds, "tokens": num_tokens})
