"""Client side of a sequence's stream: send absolute-position updates, replay if the server is stale."""

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import grpc

from flyserve.core.errors import FlyServeError, NotReady
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
from flyserve.v1.drafter_pb2_grpc import DrafterStub
from flyserve.v1.target_pb2_grpc import TargetStub
from flyserve.wire.status import from_peer_error
from flyserve.wire.streams import (
    draft_request_to_wire,
    draft_response_from_wire,
    verify_request_to_wire,
    verify_response_from_wire,
    write_opening,
)
from services.common.telemetry.tracing import outgoing_metadata

Step = TypeVar("Step")
Answer = TypeVar("Answer", bound=Verification | Draft)

_MAX_REPLAYS_IN_A_ROW = 3
_CLOSE_TIMEOUT_S = 1.0


class SequenceStream(Generic[Step, Answer]):
    """One sequence at one server; an async context manager that ends it.

    Attributes:
        num_bytes: Bytes sent and received.
        replays: Number of full replays of the sequence.
        on_place: Called when the server reports that the sequence waits for its place, or has it.
    """

    def __init__(
        self,
        call: Any,
        opening: Open,
        to_wire: Callable[[Step | Close], Any],
        from_wire: Callable[[Any], Answer | Stale | Queued | Opened],
    ) -> None:
        self.num_bytes = 0
        self.replays = 0
        self.on_place: Callable[[Queued | Opened], None] = lambda message: None
        self._call = call
        self._opening: Open | None = opening
        self._to_wire = to_wire
        self._from_wire = from_wire
        self._view = SequenceMirror()
        self._last: SequenceUpdate | None = None

    def conclude(self, sequence: TokenSequence, decided: int) -> None:
        """Set the final sequence, to be sent with the close; call it after the last step was answered."""
        self._last = self._view.update(sequence, (), decided)

    def cancel(self) -> None:
        """Cancel the stream; a step that waits for its answer raises NotReady."""
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
            FlyServeError: Any other error that the server returned.
        """
        for _ in range(_MAX_REPLAYS_IN_A_ROW + 1):
            update = self._view.update(sequence, drafts, decided)
            answer = await self._exchange(make_step(update))
            if answer.step_id != update.step_id:
                raise NotReady(f"the server answered step {answer.step_id} instead of step {update.step_id}")
            if not isinstance(answer, Stale):
                return answer
            self._view.forget()
            self.replays += 1
        raise NotReady(f"the server answered stale {_MAX_REPLAYS_IN_A_ROW + 1} times in a row")

    async def _exchange(self, step: Step) -> Answer | Stale:
        try:
            await self._write(step)
            return await self._read()
        except grpc.aio.AioRpcError as error:
            raise from_peer_error(error) from error
        except asyncio.InvalidStateError:
            raise await self._ended() from None
        except asyncio.CancelledError:
            if is_task_cancelled():
                raise
            raise NotReady("the stream was cancelled") from None

    async def _read(self) -> Answer | Stale:
        """Return the answer to a step; the sequence may have to wait for its place before."""
        while (response := await self._call.read()) is not grpc.aio.EOF:
            self.num_bytes += response.ByteSize()
            message = self._from_wire(response)
            if not isinstance(message, Queued | Opened):
                return message
            self.on_place(message)
        raise await self._ended()

    async def _write(self, message: Step | Close) -> None:
        request = self._to_wire(message)
        if self._opening is not None:
            write_opening(self._opening, request)
            self._opening = None
        self.num_bytes += request.ByteSize()
        await self._call.write(request)

    async def _ended(self) -> FlyServeError:
        return NotReady(f"the server ended the stream: {(await self._call.code()).name}")

    async def _close(self) -> None:
        """Send an explicit close; without it the server assumes that its client is lost."""
        if self._opening is not None:
            return
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._write(Close(self._last))
                await self._call.read()  # the server ends the stream
        except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError, TimeoutError):
            # NOTE: gRPC raises InternalError if the server ends the stream at the moment of a write.
            return
        except asyncio.CancelledError:
            if is_task_cancelled():
                raise


def is_task_cancelled() -> bool:
    """Return True if the task was cancelled rather than its call."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class TargetStream(SequenceStream[VerifyStep | Extend, Verification]):
    """One sequence at one target replica."""

    def __init__(self, channel: grpc.aio.Channel, opening: Open) -> None:
        call = TargetStub(channel).Verify(metadata=outgoing_metadata())
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
        call = DrafterStub(channel).Draft(metadata=outgoing_metadata())
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
