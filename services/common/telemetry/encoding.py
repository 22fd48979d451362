"""Finished spans as the message that a collector takes."""

from collections.abc import Sequence

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import SpanFlags, Status
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

_KINDS_OFFSET = 1
"""The wire's kinds begin with one that is not said."""

_LOCAL = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_REMOTE = _LOCAL | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK


def encode(spans: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
    """Spans of one process and one scope, without events and links; at least one."""
    request = ExportTraceServiceRequest()
    told = request.resource_spans.add()
    for key, value in spans[0].resource.attributes.items():
        _set(told.resource.attributes.add(key=key).value, value)
    scope = told.scope_spans.add()
    if (instrumentation := spans[0].instrumentation_scope) is not None:
        scope.scope.name, scope.scope.version = instrumentation.name, instrumentation.version or ""
    for span in spans:
        context, parent = span.context, span.parent
        assert context is not None, "a finished span has a context"
        wire = scope.spans.add(
            trace_id=context.trace_id.to_bytes(16, "big"),
            span_id=context.span_id.to_bytes(8, "big"),
            parent_span_id=b"" if parent is None else parent.span_id.to_bytes(8, "big"),
            name=span.name,
            kind=span.kind.value + _KINDS_OFFSET,  # type: ignore[arg-type]
            start_time_unix_nano=span.start_time or 0,
            end_time_unix_nano=span.end_time or 0,
            flags=_REMOTE if parent is not None and parent.is_remote else _LOCAL,
        )
        for key, value in (span.attributes or {}).items():
            _set(wire.attributes.add(key=key).value, value)
        if span.status.status_code is StatusCode.ERROR:
            wire.status.code = Status.STATUS_CODE_ERROR
    return request


def _set(wire: AnyValue, value: object) -> None:
    # NOTE: a truth value is an integer, too.
    if isinstance(value, bool):
        wire.bool_value = value
    elif isinstance(value, int):
        wire.int_value = value
    elif isinstance(value, float):
        wire.double_value = value
    else:
        wire.string_value = str(value)
