"""Spans as they are recorded: a few numbers each, collected by request or stream, handed over in parts.

NOTE: the SDK's own spans cost a router several times as much, for locks and limits that nothing here needs.
"""

import random
import time
from collections.abc import Callable
from contextvars import Token
from types import TracebackType
from typing import ClassVar, Self

from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from services.common.telemetry.tracing import TRACEPARENT, Note, Span, enter_span, leave_span

_PART_SPANS = 32
"""Spans of one request that are handed over together, before it is over."""


class Part:
    """Finished spans of one request or stream.

    Attributes:
        context: Tells the SDK's batching, which asks for nothing else, that these are to be exported.
        spans: In the order of their ends.
    """

    context: ClassVar[SpanContext] = SpanContext(1, 1, False, TraceFlags(TraceFlags.SAMPLED))

    def __init__(self, spans: "list[RecordedSpan]") -> None:
        self.spans = spans


class TracePart:
    """One process's part in the trace of one request: where its spans come together.

    Attributes:
        trace_id: 128 bits.
    """

    __slots__ = ("_finished", "_hand_over", "_is_over", "trace_id")

    def __init__(self, trace_id: int, hand_over: Callable[[Part], None]) -> None:
        self.trace_id = trace_id
        self._hand_over = hand_over
        self._finished: list[RecordedSpan] = []
        self._is_over = False

    def finish(self, span: "RecordedSpan") -> None:
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
        part: Where its parts come together.
        span_id: Whose parts they are.
    """

    __slots__ = ("_token", "part", "span_id")

    def __init__(self, part: TracePart, span_id: int) -> None:
        self.part = part
        self.span_id = span_id
        self._token: Token[Span] | None = None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return ((TRACEPARENT, f"00-{self.part.trace_id:032x}-{self.span_id:016x}-01"),)

    def child(self, name: str) -> Span:
        return RecordedSpan(self.part, name, SpanKind.INTERNAL, self.span_id)

    def call(self, name: str) -> Span:
        return RecordedSpan(self.part, name, SpanKind.CLIENT, self.span_id)

    def _leave(self) -> None:
        if self._token is not None:
            leave_span(self._token)


class RecordedSpan(_Parent):
    """A span.

    Attributes:
        parent_id: 0 where the trace begins here.
        is_remote: The parent is another process's.
        started_ns: Since 1970, as the end.
        notes: What was said of it.
    """

    __slots__ = (
        "_ends_part",
        "ended_ns",
        "is_error",
        "is_remote",
        "kind",
        "name",
        "notes",
        "parent_id",
        "started_ns",
    )

    def __init__(
        self,
        part: TracePart,
        name: str,
        kind: SpanKind,
        parent_id: int,
        is_remote: bool = False,
        ends_part: bool = False,
    ) -> None:
        """Begins now; with a span that ends its part, the request is over."""
        super().__init__(part, random.getrandbits(64) or 1)
        self.name = name
        self.kind = kind
        self.parent_id = parent_id
        self.is_remote = is_remote
        self.notes: dict[str, Note] = {}
        self.is_error = False
        self._ends_part = ends_part
        self.started_ns = time.time_ns()
        self.ended_ns = 0

    def note(self, **notes: Note) -> None:
        self.notes.update(notes)

    def __enter__(self) -> Self:
        self._token = enter_span(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Of an error only its kind is told."""
        self._leave()
        if kind is not None:
            self.is_error = True
            self.notes["error.type"] = kind.__name__
        self.ended_ns = time.time_ns()
        self.part.finish(self)
        if self._ends_part:
            self.part.end()


class RecordedStream(_Parent):
    """A client's trace at the server of one of its streams; records its steps, not itself."""

    def __init__(self, part: TracePart, opened_by: int) -> None:
        """Of the client's span that opened the stream."""
        super().__init__(part, opened_by)
        self._opened_by = opened_by

    def step(self, name: str, span_id: int) -> Span:
        """Of the span that opened the stream, where the step names none; what follows is part of it."""
        span = RecordedSpan(self.part, name, SpanKind.SERVER, span_id or self._opened_by, is_remote=True)
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
        self._leave()
        self.part.end()
