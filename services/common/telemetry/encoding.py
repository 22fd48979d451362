"""Finished spans as the message that a collector takes.

NOTE: a span becomes bytes the moment that it ends, and nothing else of it is kept: thousands of objects that
wait for the next batch are what the garbage collector would spend its time on. Protobuf writes what recurs;
what a span has of its own stands between, in fields of fixed length. Encoded messages may be concatenated.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from struct import Struct

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as WireResource
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import SpanFlags, Status
from opentelemetry.sdk.resources import Resource

from fly.version import VERSION
from services.common.telemetry.tracing import Note

INTERNAL, SERVER, CLIENT = WireSpan.SPAN_KIND_INTERNAL, WireSpan.SPAN_KIND_SERVER, WireSpan.SPAN_KIND_CLIENT
FAILED = WireSpan(status=Status(code=Status.STATUS_CODE_ERROR)).SerializeToString()
"""What is added to a span that has failed."""

_LOCAL = int(SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)
_REMOTE = _LOCAL | int(SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
_SMALL = 4096
"""Numbers below recur: lengths of drafts, of batches. Durations do not."""

_OWN = Struct("<2s8s2s8scQcQ")
_SPAN_ID, _PARENT_ID, _START, _END = b"\x12\x08", b"\x22\x08", b"\x39", b"\x41"
"""Fields 2 and 4 of a span, of 8 bytes each, and 7 and 8, of 64 bits each."""


@lru_cache(maxsize=256)
def encode_shared(name: str, kind: WireSpan.SpanKind.ValueType, is_remote: bool) -> bytes:
    """What all spans have in common that do the same; `is_remote` says that their parents are elsewhere."""
    flags = _REMOTE if is_remote else _LOCAL
    return WireSpan(name=name, kind=kind, flags=flags).SerializeToString()


def encode_trace(trace_id: int) -> bytes:
    """What all spans of a trace have in common."""
    return WireSpan(trace_id=trace_id.to_bytes(16, "big")).SerializeToString()


def encode_own(span_id: int, parent_id: int, started_ns: int, ended_ns: int) -> bytes:
    """What one span has of its own; `parent_id` 0 where it has none."""
    own = span_id.to_bytes(8, "big")
    if not parent_id:
        return WireSpan(
            span_id=own, start_time_unix_nano=started_ns, end_time_unix_nano=ended_ns
        ).SerializeToString()
    return _OWN.pack(
        _SPAN_ID, own, _PARENT_ID, parent_id.to_bytes(8, "big"), _START, started_ns, _END, ended_ns
    )


def encode_notes(notes: Mapping[str, Note]) -> bytes:
    """What was said of a span."""
    return b"".join(
        [
            _encode_known(key, value) if type(value) is int and 0 <= value < _SMALL else _encode(key, value)
            for key, value in notes.items()
        ]
    )


def encode_resource(resource: Resource) -> WireResource:
    """Who tells the spans."""
    wire = WireResource()
    for key, value in resource.attributes.items():
        _set(wire.attributes.add(key=key).value, value)
    return wire


def request_of(resource: WireResource, spans: Iterable[bytes]) -> ExportTraceServiceRequest:
    """Encoded spans, as told by one process."""
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add(resource=resource).scope_spans.add()
    scope.scope.name, scope.scope.version = "flyserve", VERSION
    for span in spans:
        scope.spans.add().MergeFromString(span)
    return request


def _encode(key: str, value: Note) -> bytes:
    wire = WireSpan()
    _set(wire.attributes.add(key=key).value, value)
    return wire.SerializeToString()


_encode_known = lru_cache(maxsize=_SMALL)(_encode)


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
