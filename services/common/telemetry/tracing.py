"""Spans of traced requests as their users see them, and what stands for them where nothing is traced."""

from collections.abc import Iterable
from contextvars import ContextVar
from types import TracebackType
from typing import Protocol, Self

TRACEPARENT = "traceparent"
"""Key of the trace in a call's metadata (W3C trace context)."""

Metadata = Iterable[tuple[str, str | bytes]]
Note = str | int | float | bool


class Span(Protocol):
    """A stretch of work. While it is entered it is the current one of its task; leaving records it."""

    @property
    def span_id(self) -> int:
        """Tells other processes whose work a step is; 0 where it is not traced."""

    @property
    def metadata(self) -> tuple[tuple[str, str], ...] | None:
        """What a stream is called with that is opened within it."""

    def child(self, name: str) -> "Span":
        """A part of it, which begins now."""

    def call(self, name: str) -> "Span":
        """A part of it in which another process works, too."""

    def note(self, **notes: Note) -> None:
        """Says more of it: figures and names, never what was said."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class StreamTrace(Span, Protocol):
    """One stream's part in a trace, at its server; its children belong to its latest step."""

    def step(self, name: str, span_id: int) -> Span:
        """The work for one step, of the client's span with this id."""


def traceparent_in(metadata: Metadata | None) -> str:
    """What a call's metadata says of its client's trace; "" where it says nothing."""
    return next((str(value) for key, value in metadata or () if key == TRACEPARENT), "")


class Tracer(Protocol):
    """Begins the spans of one process."""

    def request(self, name: str, traceparent: str) -> Span:
        """A request's span; begins a trace or goes on with its client's, or records nothing."""

    def stream(self, metadata: Metadata | None) -> StreamTrace:
        """What a stream that was called with this metadata belongs to; its client has decided."""

    def close(self) -> None:
        """Sends what is left, within a short time; blocks meanwhile."""


class NoSpan:
    """Stands for the spans of what is not traced."""

    span_id = 0
    metadata = None

    def child(self, name: str) -> Span:
        return self

    def call(self, name: str) -> Span:
        return self

    def step(self, name: str, span_id: int) -> Span:
        return self

    def note(self, **notes: Note) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


NO_SPAN = NoSpan()


class NoTracer:
    """Traces nothing."""

    def request(self, name: str, traceparent: str) -> Span:
        return NO_SPAN

    def stream(self, metadata: Metadata | None) -> StreamTrace:
        return NO_SPAN

    def close(self) -> None:
        pass


_current: ContextVar[Span] = ContextVar("span", default=NO_SPAN)


def current_span() -> Span:
    """The span that this task has entered last, or that its parent task had when it began this one."""
    return _current.get()


enter_span = _current.set
"""For implementations: makes a span the current one."""

leave_span = _current.reset
"""For implementations: makes the span current again that was so before."""
