"""The client's side of a sequence's stream: tell the truth by position, replay when the server is stale."""

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import grpc

from fly.errors import FlyServeError, NotReady
from fly.messages import Close, Draft, DraftStep, Open, Stale, Verification, VerifyStep
from fly.sequence import SequenceMirror, SequenceUpdate, TokenSequence
from fly.types import SparseDistribution
from protos.flyserve.v1.drafter_pb2_grpc import DrafterStub
from protos.flyserve.v1.target_pb2_grpc import TargetStub
from protos.wire.status import from_peer_error
from protos.wire.streams import (
    draft_request_to_wire,
    draft_response_from_wire,
    verify_request_to_wire,
    verify_response_from_wire,
)
from services.common.telemetry.tracing import current_span

Step = TypeVar("Step")
Answer = TypeVar("Answer", bound=Verification | Draft)

_MAX_REPLAYS_IN_A_ROW = 3
_FAREWELL_TIMEOUT_S = 1.0


class SequenceStream(Generic[Step, Answer]):
    """One sequence at one server; an async context manager that ends it.

    Attributes:
        num_bytes: Sent and received.
        replays: Times that the server had to be told the sequence again.
    """

    def __init__(
        self,
        call: Any,
        opening: Open,
        to_wire: Callable[[Open | Step | Close], Any],
        from_wire: Callable[[Any], Answer | Stale],
    ) -> None:
        self.num_bytes = 0
        self.replays = 0
        self._call = call
        self._opening: Open | None = opening
        self._to_wire = to_wire
        self._from_wire = from_wire
        self._view = SequenceMirror()
        self._last: SequenceUpdate | None = None

    def conclude(self, sequence: TokenSequence, decided: int) -> None:
        """What the sequence came to: told with the farewell, once the last step has been answered."""
        self._last = self._view.update(sequence, (), decided)

    def hang_up(self) -> None:
        """Ends the stream; a step that waits for its answer is told that the server is not ready."""
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self._say_farewell()
        finally:
            self._call.cancel()

    async def _step(
        self,
        make_step: Callable[[SequenceUpdate], Step],
        sequence: TokenSequence,
        drafts: Sequence[int],
        decided: int,
    ) -> Answer:
        """Sends one step, and replays the sequence for as long as the server is stale.

        Raises:
            NotReady: The stream is broken, or the server stays stale.
            FlyServeError: What else the server answered.
        """
        for _ in range(_MAX_REPLAYS_IN_A_ROW + 1):
            update = self._view.update(sequence, drafts, decided)
            answer = await self._exchange(make_step(update))
            if answer.step_id != update.step_id:
                raise NotReady(f"the server answered step {answer.step_id}, asked was {update.step_id}")
            if not isinstance(answer, Stale):
                return answer
            self._view.forget()
            self.replays += 1
        raise NotReady(f"the server answered stale {_MAX_REPLAYS_IN_A_ROW + 1} times in a row")

    async def _exchange(self, step: Step) -> Answer | Stale:
        try:
            if self._opening is not None:
                opening, self._opening = self._opening, None
                await self._write(opening)
            await self._write(step)
            response = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise from_peer_error(error) from error
        except asyncio.InvalidStateError:
            raise await self._ended() from None
        except asyncio.CancelledError:
            if _is_leaving():
                raise
            raise NotReady("the call has been given up") from None
        if response is grpc.aio.EOF:
            raise await self._ended()
        self.num_bytes += response.ByteSize()
        return self._from_wire(response)

    async def _write(self, message: Open | Step | Close) -> None:
        request = self._to_wire(message)
        self.num_bytes += request.ByteSize()
        await self._call.write(request)

    async def _ended(self) -> FlyServeError:
        return NotReady(f"the server ended the stream: {(await self._call.code()).name}")

    async def _say_farewell(self) -> None:
        """An explicit close: without it the server must take its client for dead."""
        if self._opening is not None:
            return
        try:
            async with asyncio.timeout(_FAREWELL_TIMEOUT_S):
                await self._write(Close(self._last))
                await self._call.done_writing()
                await self._call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
            return
        except asyncio.CancelledError:
            if _is_leaving():
                raise


def _is_leaving() -> bool:
    """Whether it is the task that was cancelled, and not its call."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class TargetStream(SequenceStream[VerifyStep, Verification]):
    """One sequence at one target replica."""

    def __init__(self, channel: grpc.aio.Channel, opening: Open) -> None:
        call = TargetStub(channel).Verify(metadata=current_span().metadata)
        super().__init__(call, opening, verify_request_to_wire, verify_response_from_wire)

    async def verify(
        self,
        sequence: TokenSequence,
        drafts: Sequence[int],
        decided: int,
        distributions: Sequence[SparseDistribution] = (),
    ) -> Verification:
        """Has `drafts` judged after `sequence`, of which the first `decided` tokens are final.

        Args:
            sequence: What the drafts follow, provisional tokens included.
            drafts: Tokens to judge.
            decided: Tokens of the sequence that will never be rolled back.
            distributions: What each draft was drawn from (coupling `rejection`); else empty.
        """

        def make_step(update: SequenceUpdate) -> VerifyStep:
            return VerifyStep(update, len(drafts), tuple(distributions), current_span().span_id)

        return await self._step(make_step, sequence, drafts, decided)


class DrafterStream(SequenceStream[DraftStep, Draft]):
    """One sequence at one drafter or sub-drafter."""

    def __init__(self, channel: grpc.aio.Channel, opening: Open) -> None:
        call = DrafterStub(channel).Draft(metadata=current_span().metadata)
        super().__init__(call, opening, draft_request_to_wire, draft_response_from_wire)

    async def draft(
        self,
        sequence: TokenSequence,
        decided: int,
        max_tokens: int,
        end_at_stop: bool = False,
        snippet_tokens: int = 0,
    ) -> Draft:
        """Has at most `max_tokens` tokens proposed after `sequence`, and `snippet_tokens` of memory told."""

        def make_step(update: SequenceUpdate) -> DraftStep:
            return DraftStep(update, max_tokens, end_at_stop, snippet_tokens, current_span().span_id)

        draft = await self._step(make_step, sequence, (), decided)
        self._view.append(draft.tokens)
        return draft
