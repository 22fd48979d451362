"""An OpenTelemetry collector on loopback that keeps every span it receives."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


@dataclass(frozen=True)
class CollectedEvent:
    """One event of a span."""

    name: str
    at_ns: int
    attributes: dict[str, Any]


@dataclass(frozen=True)
class Collected:
    """One span as it was received; its process has the names of its deployment and its replica."""

    service: str
    process: tuple[str, str]
    name: str
    trace: bytes
    id: bytes
    parent: bytes
    kind: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: list[CollectedEvent]
    num_dropped_events: int
    is_error: bool

    def events_named(self, name: str) -> list[dict[str, Any]]:
        """Return the attributes of all events with this name."""
        return [event.attributes for event in self.events if event.name == name]


@dataclass
class Collector(TraceServiceServicer):
    """The receiver of spans, at `endpoint`."""

    endpoint: str = ""
    spans: list[Collected] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)

    def Export(self, request: Any, context: Any) -> Any:
        self.raw.append(request.SerializeToString())
        for process in request.resource_spans:
            resource = _attributes(process.resource.attributes)
            for scope in process.scope_spans:
                self.spans += [_collected(resource, span) for span in scope.spans]
        return ExportTraceServiceResponse()


@contextmanager
def collector() -> Iterator[Collector]:
    """Receive spans until the block is left."""
    server, receiver = grpc.server(ThreadPoolExecutor(2)), Collector()
    add_TraceServiceServicer_to_server(receiver, server)
    receiver.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()


def _collected(resource: dict[str, Any], span: Any) -> Collected:
    return Collected(
        service=resource["service.name"],
        process=(resource.get("service.namespace", ""), resource.get("service.instance.id", "")),
        name=span.name,
        trace=span.trace_id,
        id=span.span_id,
        parent=span.parent_span_id,
        kind=span.kind,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        events=[CollectedEvent(e.name, e.time_unix_nano, _attributes(e.attributes)) for e in span.events],
        num_dropped_events=span.dropped_events_count,
        is_error=span.status.code == 2,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
