"""Spans: one per request at the router, one per stream at a service; rounds and steps are their events.

Without a collector there is no tracer, and without a sampled request there is no span: None stands for both
and costs nothing. OpenTelemetry is imported inside functions: it is not loaded without a collector.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Span as Span
    from opentelemetry.trace import Tracer as Tracer
else:
    Span = Tracer = object

TRACEPARENT = "traceparent"
"""Key of the trace context in a call's metadata (W3C)."""

Metadata = Iterable[tuple[str, str | bytes]]

_current: ContextVar[Span | None] = ContextVar("span", default=None)


@contextmanager
def record_span(tracer: Tracer | None, name: str, traceparent: str) -> Iterator[Span | None]:
    """Record the block as a span, which is the current one meanwhile; yield None where nothing is recorded.

    Without a tracer nothing is recorded; with an empty `traceparent`, the context of the caller, the span
    starts a new trace. Of an error only the type is recorded, because its message may quote the request. A
    cancelled call is not an error.
    """
    span = None if tracer is None else _start(tracer, name, traceparent)
    if span is None:
        yield None
        return
    token = _current.set(span)
    try:
        yield span
    except BaseException as error:
        _set_error(span, error)
        raise
    finally:
        _current.reset(token)
        span.end()


def current_span() -> Span | None:
    """Return the span of this task or of the task that created it; None where nothing is recorded.

    A task may outlive the span: check `is_recording` before adding events.
    """
    return _current.get()


def outgoing_traceparent() -> str:
    """Return the context that makes a sequence part of the current span's trace; "" without a span."""
    if (span := _current.get()) is None:
        return ""
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, set_span_in_context(span))
    return carrier.get(TRACEPARENT, "")


def traceparent_in(metadata: Metadata | None) -> str:
    """Return the trace context in a call's metadata; "" where there is none."""
    return next((str(value) for key, value in metadata or () if key == TRACEPARENT), "")


def _start(tracer: Tracer, name: str, traceparent: str) -> Span | None:
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parent = TraceContextTextMapPropagator().extract({TRACEPARENT: traceparent}) if traceparent else None
    span = tracer.start_span(name, parent, SpanKind.SERVER, record_exception=False)
    return span if span.is_recording() else None


def _set_error(span: Span, error: BaseException) -> None:
    from opentelemetry.trace import StatusCode

    span.set_attribute("error.type", type(error).__name__)
    if not isinstance(error, asyncio.CancelledError):
        span.set_status(StatusCode.ERROR)
