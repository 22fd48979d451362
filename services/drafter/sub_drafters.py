"""The available sub-drafters of a drafter, and a session at one of them for every sequence."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial

import grpc

from flyserve.core.comparison import Comparison, Turn
from flyserve.core.endpoints import Snapshot
from flyserve.core.errors import FlyServeError, NotReady
from flyserve.core.messages import Open, Role
from flyserve.core.sequence import TokenSequence
from services.common.channel import Backoff, open_channel
from services.common.endpoint_sources import EndpointSource
from services.common.security.identity import Identity, certificate_name
from services.common.shared_stream.client import finish_sequences
from services.common.streams import DrafterStream
from services.common.telemetry.tracing import current_span
from services.drafter.drafting import SubDrafterSession
from services.drafter.snippet_proposer import SNIPPET_TOKENS, SnippetProposer, SnippetRequest
from services.drafter.sub_drafter_use import SubDrafterUse
from services.lookup.index.budget import IndexBudget, IndexShare

logger = logging.getLogger(__name__)


_RESPONSE_TIMEOUT_S = 1.0
"""Time without a response after which the stream is closed; drafting does not wait for it."""


class SubDrafterClient(SubDrafterSession):
    """The connection of one proposer to an available sub-drafter, for the lifetime of the sequence.

    Attributes:
        proposer: The source of the requests.
        is_finished: No request follows; the final sequence is queued.
    """

    proposer: SnippetProposer

    def __init__(
        self,
        open_stream: Callable[[], DrafterStream | None],
        use: SubDrafterUse,
        vocab_size: int,
        share: IndexShare,
    ) -> None:
        """Create a client; `open_stream` returns None while there is no sub-drafter."""
        self.proposer = SnippetProposer(self._send, use, vocab_size, share)
        self.is_finished = False
        self._open_stream = open_stream
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._inbox: deque[SnippetRequest] = deque()
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
        self._send(SnippetRequest(0, tuple(ids), decided))
        self._wake.set()

    def _send(self, request: SnippetRequest) -> None:
        self._inbox.append(request)
        self._loop.call_soon_threadsafe(self._wake.set)

    async def _use_stream(self) -> None:
        """Open one stream at the first request and send requests until it breaks or the sequence ends."""
        await self._wake.wait()
        if self.is_finished and not self._inbox:
            return
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
                    self._sequence, request.decided, max_tokens=0, snippet_tokens=SNIPPET_TOKENS
                )
        except TimeoutError:
            raise NotReady(f"no response within {_RESPONSE_TIMEOUT_S:g} s") from None
        self._backoff = Backoff()
        _trace_snippets(len(draft.snippets), time.perf_counter() - started)
        self.proposer.receive(request, draft)

    def _latest(self) -> SnippetRequest | None:
        """Return the latest request, after all requests in the inbox have updated the sequence."""
        request = None
        while self._inbox:
            request = self._inbox.popleft()
            self._sequence.truncate(request.base)
            self._sequence.extend(request.tail)
        return request


def _trace_snippets(number: int, seconds: float) -> None:
    span = current_span()
    # The answer may arrive after the end of the drafter's stream.
    if span is not None and span.is_recording():
        span.add_event("snippets", {"seconds": seconds, "snippets": number})


_FINISH_TIMEOUT_S = 1.0
"""Time to send the final sequence to the sub-drafter."""

_CLOSE_GRACE_S = 600.0
"""Time for open streams to finish on a channel with an outdated certificate."""


class SubDrafters:
    """The sub-drafters of a source of endpoints; sequences are distributed over them in turn.

    Attributes:
        index_budget: Limit of the tokens that the indexes of proposals hold.
        turn: Lets the comparisons of the drafter's sub-drafters and of drafting ahead take turns.
    """

    def __init__(
        self,
        source: EndpointSource | None,
        identity: Identity | None = None,
        index_budget: IndexBudget | None = None,
    ) -> None:
        """Create it without channels; `source` is None if the deployment has no sub-drafters."""
        self.index_budget = index_budget or IndexBudget()
        self._source = source
        self._identity = identity
        self._version = identity.version if identity else 0
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._num_opened = 0
        self.turn = Turn()
        self._use = SubDrafterUse(self.turn)
        self._watcher: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def comparison(self) -> Comparison | None:
        """The comparison of rounds with sub-drafters and without; None if the deployment has none."""
        return None if self._source is None else self._use.comparison

    async def start(self) -> None:
        """Start to watch the source."""
        if self._source is not None:
            self._watcher = asyncio.create_task(self._watch(self._source), name="sub-drafters")

    async def stop(self) -> None:
        """Cancel all tasks and close every channel."""
        tasks = [*self._tasks, *([] if self._watcher is None else [self._watcher])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for address in list(self._channels):
            await self._channels.pop(address).close()

    @asynccontextmanager
    async def session(self, opening: Open, vocab_size: int) -> AsyncIterator[SubDrafterSession]:
        """Open a session for one sequence; a null session if the request or deployment has no sub-drafter.

        If the session is finished, the final sequence is sent to the sub-drafter after the exit.
        """
        if self._source is None or opening.without_sub_drafter:
            yield SubDrafterSession()
            return
        share = self.index_budget.share()
        client = SubDrafterClient(partial(self._open_stream, opening), self._use, vocab_size, share)
        task = asyncio.create_task(client.run(), name=f"proposals {opening.request_id}")
        self._keep(task)
        try:
            yield client
        finally:
            share.close()
            # NOTE: the task sends the final sequence by itself: the drafter does not wait for a sub-drafter.
            delay_s = _FINISH_TIMEOUT_S if client.is_finished else 0.0
            asyncio.get_running_loop().call_later(delay_s, task.cancel)

    def _keep(self, task: asyncio.Task[None]) -> None:
        """Hold a reference to the task until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _open_stream(self, opening: Open) -> DrafterStream | None:
        """Open a stream to the next sub-drafter in turn; None if there is none."""
        if not self._channels:
            return None
        self._renew_channels()
        self._num_opened += 1
        channel = list(self._channels.values())[self._num_opened % len(self._channels)]
        # The drafter verifies what a sub-drafter proposes, so that no sequence is standalone there.
        return DrafterStream(channel, replace(opening, standalone=False))

    async def _watch(self, source: EndpointSource) -> None:
        async with aclosing(source.watch()) as snapshots:
            async for snapshot in snapshots:
                await self._apply(snapshot)

    async def _apply(self, snapshot: Snapshot) -> None:
        addresses = {
            endpoint.address
            for endpoint in snapshot.endpoints
            if endpoint.role is Role.SUB_DRAFTER and not endpoint.draining
        }
        for address in self._channels.keys() - addresses:
            await self._channels.pop(address).close()
        for address in addresses - self._channels.keys():
            self._channels[address] = self._open_channel(address)

    def _open_channel(self, address: str) -> grpc.aio.Channel:
        name = certificate_name(Role.SUB_DRAFTER)
        return open_channel(address, self._identity.peer_tls(name) if self._identity else None)

    def _renew_channels(self) -> None:
        """Replace all channels if the certificate has changed; streams on the old ones may finish."""
        if self._identity is None or self._identity.version == self._version:
            return
        self._version = self._identity.version
        for address, outdated in list(self._channels.items()):
            self._channels[address] = self._open_channel(address)
            finish_sequences(outdated)
            self._keep(asyncio.create_task(outdated.close(_CLOSE_GRACE_S), name="outdated channel"))
