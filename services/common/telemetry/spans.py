"""Spans as they are recorded: bytes once they end, collected by request or stream, handed over in parts.

NOTE: the SDK's own spans cost a router several times as much, for locks and limits that nothing here needs.
"""

import random
import time
from collections.abc import Callable, Sequence
from contextvars import Token
from types import TracebackType
from typing import ClassVar, Self

from opentelemetry.trace import SpanContext, TraceFlags

from services.common.telemetry.encoding import (
    CLIENT,
    FAILED,
    INTERNAL,
    SERVER,
    encode_notes,
    encode_own,
    encode_shared,
    encode_trace,
)
from services.common.telemetry.tracing import TRACEPARENT, Note, Span, enter_span, leave_span

_PART_SPANS = 32
"""Spans of one request that are handed over together, before it is over."""


class Part:
    """Finished spans of one request or stream.

    Attributes:
        context: Tells the SDK's batching, which asks for nothing else, that these are to be exported.
        spans: As bytes, in the order of their ends.
    """

    context: ClassVar[SpanContext] = SpanContext(1, 1, False, TraceFlags(TraceFlags.SAMPLED))

    def __init__(self, spans: Sequence[bytes]) -> None:
        self.spans = spans


class TracePart:
    """One process's part in the trace of one request: where its spans come together.

    Attributes:
        trace_id: 128 bits.
        shared: What all its spans have in common, as bytes.
    """

    __slots__ = ("_finished", "_hand_over", "_is_over", "shared", "trace_id")

    def __init__(self, trace_id: int, hand_over: Callable[[Part], None]) -> None:
        self.trace_id = trace_id
        self.shared = encode_trace(trace_id)
        self._hand_over = hand_over
        self._finished: list[bytes] = []
        self._is_over = False

    def finish(self, span: bytes) -> None:
        """Takes a span that is over."""
        self._finished.append(span)
        if self._is_over or len(self._finished) >= _PART_SPANS:
            self._flush()

    def end(self) -> None:
        """Nothing much is to come: what comes all the same goes at once."""
        self._is_over = True
        self._flush()

    def _flush(self) -> None:
        if self._finished:
            part, self._finished = Part(self._finished), []
            self._hand_over(part)


class _Parent:
    """What others may be parts of; the current one of its task while it is entered.

    Attributes:
        span_id: Whose parts they are, 64 bits.
    """

    __slots__ = ("_part", "_token", "span_id")

    _part: TracePart
    _token: Token[Span]
    span_id: int

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return ((TRACEPARENT, f"00-{self._part.trace_id:032x}-{self.span_id:016x}-01"),)

    def child(self, name: str) -> Span:
        return RecordedSpan(self._part, name, INTERNAL, self.span_id)

    def call(self, name: str) -> Span:
        return RecordedSpan(self._part, name, CLIENT, self.span_id)


class RecordedSpan(_Parent):
    """A span."""

    __slots__ = ("_ends_part", "_notes", "_parent_id", "_shared", "_started_ns")

    def __init__(
        self,
        part: TracePart,
        name: str,
        kind: int,
        parent_id: int,
        is_remote: bool = False,
        ends_part: bool = False,
    ) -> None:
        """Begins now.

        Args:
            part: Where it comes together with others.
            name: Of what is done.
            kind: On which side of a call.
            parent_id: 0 where the trace begins here.
            is_remote: The parent is another process's.
            ends_part: With this span the request is over.
        """
        self.span_id = random.getrandbits(64) or 1
        self._part = part
        self._parent_id = parent_id
        self._shared = encode_shared(name, kind, is_remote)
        self._notes: dict[str, Note] | None = None
        self._ends_part = ends_part
        self._started_ns = time.time_ns()

    def note(self, **notes: Note) -> None:
        if self._notes is None:
            self._notes = notes
        else:
            self._notes.update(notes)

    def __enter__(self) -> Self:
        self._token = enter_span(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Of an error only its kind is told."""
        leave_span(self._token)
        part, failed = self._part, b""
        if kind is not None:
            self.note(**{"error.type": kind.__name__})
            failed = FAILED
        own = encode_own(self.span_id, self._parent_id, self._started_ns, time.time_ns())
        notes = b"" if self._notes is None else encode_notes(self._notes)
        part.finish(part.shared + self._shared + own + notes + failed)
        if self._ends_part:
            part.end()


class RecordedStream(_Parent):
    """A client's trace at the server of one of its streams; records its steps, not itself.

    Attributes:
        span_id: Of its latest step, at first of the client's span that opened it.
    """

    def __init__(self, part: TracePart, opened_by: int) -> None:
        """Of the client's span that opened the stream."""
        self.span_id = opened_by
        self._part = part
        self._opened_by = opened_by

    def step(self, name: str, span_id: int) -> Span:
        """Of the span that opened the stream, where the step names none; what follows is part of it."""
        span = RecordedSpan(self._part, name, SERVER, span_id or self._opened_by, is_remote=True)
        self.span_id = span.span_id
        return span

    def note(self, **notes: Note) -> None:
        """It is not recorded itself."""

    def __enter__(self) -> Self:
        self._token = enter_span(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave_span(self._token)
        self._part.end()
