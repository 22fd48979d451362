"""Export of spans to a collector, by OpenTelemetry's SDK."""

import threading

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import (
    SERVICE_INSTANCE_ID,
    SERVICE_NAME,
    SERVICE_NAMESPACE,
    SERVICE_VERSION,
    Resource,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace import Tracer

from flyserve.core.version import VERSION
from services.common.telemetry.config import TelemetryConfig

_EXPORT_TIMEOUT_S = 5.0
_FLUSH_S = 2.0
"""Time for the spans that are left when a process ends, even if the collector does not answer."""

_BATCH_SPANS, _QUEUE_SPANS = 32, 256
"""Spans sent together, and spans that may wait; when the queue is full, the oldest are dropped.

NOTE: a span has up to 128 events of about 0.6 KB each, so a full queue takes about 20 MB.
"""


class SpanExport:
    """The SDK's tracing pipeline of one process."""

    def __init__(self, exporter: SpanExporter, config: TelemetryConfig, role: str) -> None:
        """Sample a share of the requests at the router; services record what their callers sampled."""
        root = TraceIdRatioBased(config.trace_ratio) if role == "router" else ALWAYS_OFF
        attributes = {SERVICE_NAME: f"flyserve-{role}", SERVICE_VERSION: VERSION}
        if config.replica:
            attributes[SERVICE_INSTANCE_ID] = config.replica
        if config.deployment:
            attributes[SERVICE_NAMESPACE] = config.deployment
        resource = Resource.create(attributes)
        self._provider = TracerProvider(ParentBased(root), resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, max_queue_size=_QUEUE_SPANS, max_export_batch_size=_BATCH_SPANS)
        )
        self._exporter = exporter
        self.tracer: Tracer = self._provider.get_tracer("flyserve", VERSION)

    def close(self) -> None:
        """Send the spans that are left; blocks for about two seconds at most."""
        # NOTE: the SDK waits up to 30 s for its worker thread; a closed exporter ends that.
        timer = threading.Timer(_FLUSH_S, self._exporter.shutdown)
        timer.start()
        self._provider.shutdown()
        timer.cancel()


def export_spans(endpoint: str, config: TelemetryConfig, role: str) -> SpanExport:
    """Start the export to a collector; the SDK's environment variables configure the rest."""
    return SpanExport(OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_TIMEOUT_S), config, role)
