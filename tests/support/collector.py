"""An OpenTelemetry collector on loopback that keeps every span it is sent."""

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
class Collected:
    """One span as it came."""

    service: str
    name: str
    trace: bytes
    id: bytes
    parent: bytes
    kind: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    is_error: bool


@dataclass
class Collector(TraceServiceServicer):
    """Where spans arrive; `endpoint` is told to those who send them."""

    endpoint: str = ""
    spans: list[Collected] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)

    def Export(self, request: Any, context: Any) -> Any:
        self.raw.append(request.SerializeToString())
        for told in request.resource_spans:
            resource = _attributes(told.resource.attributes)
            for scope in told.scope_spans:
                self.spans += [_collected(resource["service.name"], span) for span in scope.spans]
        return ExportTraceServiceResponse()


@contextmanager
def collector() -> Iterator[Collector]:
    """Takes spans until the block is left."""
    server, taker = grpc.server(ThreadPoolExecutor(2)), Collector()
    add_TraceServiceServicer_to_server(taker, server)
    taker.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield taker
    finally:
        server.stop(None).wait()


def _collected(service: str, span: Any) -> Collected:
    return Collected(
        service,
        span.name,
        span.trace_id,
        span.span_id,
        span.parent_span_id,
        span.kind,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _attributes(span.attributes),
        span.status.code == 2,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
