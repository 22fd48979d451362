"""The tracer that sends spans to a collector, by OpenTelemetry's sampling, batching and export."""

import threading
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from opentelemetry.trace import SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fly.version import VERSION
from services.common.telemetry.config import TelemetryConfig
from services.common.telemetry.encoding import SERVER, encode_resource, request_of
from services.common.telemetry.spans import Part, RecordedSpan, RecordedStream, TracePart
from services.common.telemetry.tracing import (
    NO_SPAN,
    TRACEPARENT,
    Metadata,
    Span,
    StreamTrace,
    traceparent_in,
)

_EXPORT_TIMEOUT_S = 5.0
_FLUSH_S = 2.0
"""For what is left when a process ends; a collector that is away holds nobody up for longer."""

_BATCH_PARTS, _QUEUE_PARTS = 64, 2048
"""Parts of traces that are sent together, and that may wait; what comes after is dropped."""

_IDS = RandomIdGenerator()
_W3C = TraceContextTextMapPropagator()


class RecordingTracer:
    """Records the requests that a client has chosen for it, and of the others a share."""

    def __init__(
        self, hand_over: Callable[[Part], None], close: Callable[[], None], trace_ratio: float
    ) -> None:
        """Hands finished spans over; `close` sends what is left of them."""
        self._hand_over = hand_over
        self._close = close
        self._sampler = TraceIdRatioBased(trace_ratio)

    def request(self, name: str, traceparent: str) -> Span:
        parent = _parse(traceparent)
        if parent is not None and not parent.trace_flags.sampled:
            return NO_SPAN
        trace_id = _IDS.generate_trace_id() if parent is None else parent.trace_id
        if parent is None and not self._is_sampled(name, trace_id):
            return NO_SPAN
        part, parent_id = TracePart(trace_id, self._hand_over), 0 if parent is None else parent.span_id
        return RecordedSpan(part, name, SERVER, parent_id, parent is not None, ends_part=True)

    def stream(self, metadata: Metadata | None) -> StreamTrace:
        parent = _parse(traceparent_in(metadata))
        if parent is None or not parent.trace_flags.sampled:
            return NO_SPAN
        return RecordedStream(TracePart(parent.trace_id, self._hand_over), parent.span_id)

    def close(self) -> None:
        self._close()

    def _is_sampled(self, name: str, trace_id: int) -> bool:
        return self._sampler.should_sample(None, trace_id, name).decision is Decision.RECORD_AND_SAMPLE


class _Exporter(OTLPSpanExporter):
    """As the SDK's own, but for what it sends."""

    def __init__(self, endpoint: str, resource: Resource) -> None:
        super().__init__(endpoint=endpoint, timeout=_EXPORT_TIMEOUT_S)
        self._resource = encode_resource(resource)

    # NOTE: private by name, but the one place that the SDK leaves for it; tests send spans through it.
    def _translate_data(self, data: Sequence[Any]) -> ExportTraceServiceRequest:
        return request_of(self._resource, chain.from_iterable(part.spans for part in data))


class _Batches(BatchSpanProcessor):
    """As the SDK's own, but it ends in a short time, whatever has become of the collector."""

    def __init__(self, exporter: _Exporter) -> None:
        super().__init__(exporter, max_queue_size=_QUEUE_PARTS, max_export_batch_size=_BATCH_PARTS)
        self._exporter = exporter

    def take(self, part: Part) -> None:
        """Queues a part; returns at once."""
        self.on_end(part)  # type: ignore[arg-type]

    def shutdown(self) -> None:
        give_up = threading.Timer(_FLUSH_S, self._exporter.shutdown)
        give_up.start()
        super().shutdown()  # type: ignore[no-untyped-call]
        give_up.cancel()


def exporting_tracer(endpoint: str, config: TelemetryConfig, role: str) -> RecordingTracer:
    """Sends spans to a collector; the SDK's environment variables say more of how."""
    described = {SERVICE_NAME: f"flyserve-{role}", SERVICE_VERSION: VERSION}
    if config.replica:
        described[SERVICE_INSTANCE_ID] = config.replica
    batches = _Batches(_Exporter(endpoint, Resource.create(described)))
    return RecordingTracer(batches.take, batches.shutdown, config.trace_ratio)


def _parse(traceparent: str) -> SpanContext | None:
    """The span that a client names; None where it names none, or makes no sense."""
    if not traceparent:
        return None
    context = get_current_span(_W3C.extract({TRACEPARENT: traceparent})).get_span_context()
    return context if context.is_valid else None
