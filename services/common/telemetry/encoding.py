"""Finished spans as the message that a collector takes."""

from collections.abc import Sequence

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import SpanFlags, Status
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanKind

from fly.version import VERSION
from services.common.telemetry.spans import Part

_KINDS = {
    SpanKind.INTERNAL: WireSpan.SPAN_KIND_INTERNAL,
    SpanKind.SERVER: WireSpan.SPAN_KIND_SERVER,
    SpanKind.CLIENT: WireSpan.SPAN_KIND_CLIENT,
}
_LOCAL = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_REMOTE = _LOCAL | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK


def encode(resource: Resource, parts: Sequence[Part]) -> ExportTraceServiceRequest:
    """All spans of some parts, as told by one process."""
    request = ExportTraceServiceRequest()
    told = request.resource_spans.add()
    for key, value in resource.attributes.items():
        _set(told.resource.attributes.add(key=key).value, value)
    scope = told.scope_spans.add()
    scope.scope.name, scope.scope.version = "flyserve", VERSION
    for part in parts:
        for span in part.spans:
            wire = scope.spans.add(
                trace_id=span.part.trace_id.to_bytes(16, "big"),
                span_id=span.span_id.to_bytes(8, "big"),
                parent_span_id=span.parent_id.to_bytes(8, "big") if span.parent_id else b"",
                name=span.name,
                kind=_KINDS[span.kind],
                start_time_unix_nano=span.started_ns,
                end_time_unix_nano=span.ended_ns,
                flags=_REMOTE if span.is_remote else _LOCAL,
            )
            for key, value in span.notes.items():
                _set(wire.attributes.add(key=key).value, value)
            if span.is_error:
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
