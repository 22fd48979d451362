"""Client side of a sequence's stream: send absolute-position updates, replay if the server is stale."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import grpc

from flyserve.core.errors import FlyServeError, InvalidAnswer, NotReady
from flyserve.core.messages import (
    Close,
    Draft,
    DraftStep,
    Extend,
    Open,
    Opened,
    Queued,
    Stale,
    Verification,
    VerifyStep,
)
from flyserve.core.sequence import SequenceMirror, SequenceUpdate, TokenSequence
from flyserve.core.types import SparseDistribution
from flyserve.wire.batches import DRAFT, VERIFY
from flyserve.wire.streams import (
    draft_request_to_wire,
    draft_response_from_wire,
    verify_request_to_wire,
    verify_response_from_wire,
    write_opening,
)
from services.common.shared_stream.client import SequenceCall, open_sequence
from services.common.telemetry.tracing import outgoing_traceparent

Step = TypeVar("Step")
Answer = TypeVar("Answer", bound=Verification | Draft)

_MAX_REPLAYS_IN_A_ROW = 3
_CLOSE_TIMEOUT_S = 1.0


class SequenceStream(Generic[Step, Answer]):
    """One sequence at one server, in the stream that its channel shares.

    An async context manager that ends the sequence.

    Attributes:
        num_bytes: Bytes sent and received.
        replays: Number of full replays of the sequence.
        on_place: Called when the server reports that the sequence waits for its place, or has it.
    """

    def __init__(
        self,
        call: SequenceCall,
        opening: Open,
        to_wire: Callable[[Step | Close], Any],
        from_wire: Callable[[Any], Answer | Stale | Queued | Opened],
    ) -> None:
        self.num_bytes = 0
        self.replays = 0
        self.on_place: Callable[[Queued | Opened], None] = lambda message: None
        self._call = call
        self._opening: Open | None = opening
        if (traceparent := outgoing_traceparent()) != opening.traceparent:
            self._opening = replace(opening, traceparent=traceparent)
        self._to_wire = to_wire
        self._from_wire = from_wire
        self._view = SequenceMirror()
        self._last: SequenceUpdate | None = None

    def conclude(self, sequence: TokenSequence, decided: int) -> None:
        """Set the final sequence, to be sent with the close; call it after the last step was answered."""
        self._last = self._view.update(sequence, (), decided)

    def cancel(self) -> None:
        """Cancel the sequence; a step that waits for its answer raises NotReady."""
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self._close()
        finally:
            self._call.cancel()

    async def _step(
        self,
        make_step: Callable[[SequenceUpdate], Step],
        sequence: TokenSequence,
        drafts: Sequence[int],
        decided: int,
    ) -> Answer:
        """Send one step; replay the sequence while the server is stale.

        Raises:
            NotReady: The stream is broken, or the server stays stale.
            InvalidAnswer: The answer cannot be read, or is that of another step.
            FlyServeError: Any other error that the server returned.
        """
        for _ in range(_MAX_REPLAYS_IN_A_ROW + 1):
            update = self._view.update(sequence, drafts, decided)
            self._send(make_step(update))
            answer = await self._receive()
            if answer.step_id != update.step_id:
                found = f"the server answered step {answer.step_id} instead of step {update.step_id}"
                raise InvalidAnswer(found)
            if not isinstance(answer, Stale):
                return answer
            self._view.forget()
            self.replays += 1
        raise NotReady(f"the server answered stale {_MAX_REPLAYS_IN_A_ROW + 1} times in a row")

    async def _receive(self) -> Answer | Stale:
        """Return the answer to a step; the sequence may have to wait for its place before."""
        while (response := await self._call.receive()) is not None:
            self.num_bytes += response.ByteSize()
            try:
                message = self._from_wire(response)
            except ValueError as error:
                raise InvalidAnswer(f"the server's answer cannot be read: {error}") from None
            if not isinstance(message, Queued | Opened):
                return message
            self.on_place(message)
        raise NotReady("the server ended the sequence")

    def _send(self, message: Step | Close) -> None:
        request = self._to_wire(message)
        if self._opening is not None:
            write_opening(self._opening, request)
            self._opening = None
        self.num_bytes += self._call.send(request)

    async def _close(self) -> None:
        """Send an explicit close; without it the server assumes that its client is lost."""
        if self._opening is not None:
            return
        with suppress(FlyServeError, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                self._send(Close(self._last))
                await self._call.receive()  # the end, before which the server has freed its place


class TargetStream(SequenceStream[VerifyStep | Extend, Verification]):
    """One sequence at one target replica."""

    def __init__(self, channel: grpc.aio.Channel, opening: Open) -> None:
        call = open_sequence(channel, VERIFY)
        super().__init__(call, opening, verify_request_to_wire, verify_response_from_wire)

    async def verify(
        self,
        sequence: TokenSequence,
        drafts: Sequence[int],
        decided: int,
        distributions: Sequence[SparseDistribution] = (),
    ) -> Verification:
        """Verify `drafts` after `sequence`, of which the first `decided` tokens will never be rolled back.

        `distributions` holds that of each draft (coupling `rejection`); else it is empty.
        """
        return await self._step(
            lambda update: VerifyStep(update, len(drafts), tuple(distributions)), sequence, drafts, decided
        )

    async def extend(
        self, sequence: TokenSequence, decided: int, max_tokens: int, without_entropies: bool = False
    ) -> Verification:
        """Let the target decode at most `max_tokens` tokens after `sequence`; return one position per token.

        The first `decided` tokens of the sequence will never be rolled back. The target may leave out the
        entropies if the step is `without_entropies`.
        """
        extension = await self._step(
            lambda update: Extend(update, max_tokens, without_entropies), sequence, (), decided
        )
        self._view.append(extension.choices)
        return extension


class DrafterStream(SequenceStream[DraftStep, Draft]):
    """One sequence at one drafter or sub-drafter.

    Attributes:
        draft_start: Position of the latest draft's first token.
    """

    def __init__(self, channel: grpc.aio.Channel, opening: Open) -> None:
        call = open_sequence(channel, DRAFT)
        super().__init__(call, opening, draft_request_to_wire, draft_response_from_wire)
        self.draft_start = 0

    def num_common(self, sequence: TokenSequence) -> int:
        """Return the length of the common prefix of `sequence` and the server's sequence with its draft."""
        return self._view.num_common(sequence)

    async def draft(
        self,
        sequence: TokenSequence,
        decided: int,
        max_tokens: int,
        end_at_stop: bool = False,
        snippet_tokens: int = 0,
    ) -> Draft:
        """Request at most `max_tokens` tokens after `sequence`, and at most `snippet_tokens` of snippets."""
        draft = await self._step(
            lambda update: DraftStep(update, max_tokens, end_at_stop, snippet_tokens), sequence, (), decided
        )
        self.draft_start = len(self._view)
        self._view.append(draft.tokens)
        return draft
