"""Spans of one process: who is sampled, what an error leaves behind, what a lost collector costs."""

import asyncio
import time
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.common.telemetry import otlp
from services.common.telemetry.config import TelemetryConfig
from services.common.telemetry.otlp import SpanExport
from services.common.telemetry.process import Telemetry
from services.common.telemetry.tracing import current_span, outgoing_traceparent, record_span

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{CALLER}-01", f"00-{TRACE}-{CALLER}-00"


class Process:
    """A process that keeps its finished spans."""

    def __init__(self, ratio: float = 1.0, role: str = "router") -> None:
        self.exporter = InMemorySpanExporter()
        self.export = SpanExport(self.exporter, TelemetryConfig(trace_ratio=ratio, replica="r-0"), role)
        self.tracer = self.export.tracer

    def spans(self) -> tuple[Any, ...]:
        self.export.close()
        return tuple(self.exporter.get_finished_spans())


@pytest.mark.parametrize("ratio", [0.0, 0.1, 1.0])
def test_a_share_of_the_requests_is_sampled(ratio: float) -> None:
    process, number, sampled = Process(ratio), 5000, 0
    for _ in range(number):
        with record_span(process.tracer, "generate", "") as span:
            sampled += span is not None
    process.export.close()
    assert sampled / number == pytest.approx(ratio, abs=0.03)


@pytest.mark.parametrize("role", ["router", "target"])
@pytest.mark.parametrize(("traceparent", "is_sampled"), [(SAMPLED, True), (UNSAMPLED, False)])
def test_a_caller_with_a_trace_decides(role: str, traceparent: str, is_sampled: bool) -> None:
    process = Process(float(not is_sampled), role)
    with record_span(process.tracer, "span", traceparent) as span:
        assert (span is not None) == is_sampled
    for finished in process.spans():
        assert f"{finished.parent.span_id:016x}" == CALLER
        assert f"{finished.context.trace_id:032x}" == TRACE


@pytest.mark.parametrize("traceparent", ["", "nonsense", f"00-{'0' * 32}-{CALLER}-01"])
def test_a_service_starts_no_trace_of_its_own(traceparent: str) -> None:
    process = Process(1.0, "target")
    with record_span(process.tracer, "target.verify", traceparent) as span:
        assert span is None
    assert not process.spans()


async def test_the_current_span_is_that_of_the_task() -> None:
    process = Process()

    async def current() -> object:
        return current_span()

    with record_span(process.tracer, "generate", "") as outer:
        task = asyncio.create_task(current())
        with record_span(process.tracer, "inner", SAMPLED) as inner:
            assert await asyncio.create_task(current()) is inner
        assert await task is outer
    assert current_span() is None and await current() is None
    process.export.close()


@pytest.mark.parametrize(
    ("error", "is_error"), [(ValueError("secret"), True), (asyncio.CancelledError(), False)]
)
def test_an_error_leaves_its_type_and_no_words(error: BaseException, is_error: bool) -> None:
    process = Process()
    with pytest.raises(type(error)), record_span(process.tracer, "generate", ""):
        raise error
    (finished,) = process.spans()
    assert dict(finished.attributes) == {"error.type": type(error).__name__}
    assert finished.status.is_ok != is_error and not finished.status.description
    assert not finished.events


def test_a_long_request_keeps_its_last_events() -> None:
    process = Process()
    with record_span(process.tracer, "generate", "") as span:
        assert span is not None
        for index in range(1000):
            span.add_event("round", {"index": index})
    (finished,) = process.spans()
    kept = [event.attributes["index"] for event in finished.events]
    assert kept == list(range(1000 - 128, 1000)) and finished.dropped_events == 1000 - 128


class StuckExporter(SpanExporter):
    """A collector that never answers, until it is shut down."""

    def __init__(self) -> None:
        self.is_shut_down = False
        self.num_exported = 0

    def export(self, spans: object) -> SpanExportResult:
        while not self.is_shut_down:
            time.sleep(0.01)
        self.num_exported += len(spans)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.is_shut_down = True


def test_a_collector_that_never_answers_costs_spans_and_neither_time_nor_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(otlp, "_FLUSH_S", 0.2)
    exporter = StuckExporter()
    export = SpanExport(exporter, TelemetryConfig(trace_ratio=1.0), "router")
    for _ in range(1000):
        with record_span(export.tracer, "generate", ""):
            pass
    assert exporter.num_exported == 0, "the collector was waited for"
    export.close()
    # The batch in flight, and at most what the queue holds.
    assert exporter.num_exported <= otlp._BATCH_SPANS + otlp._QUEUE_SPANS


def test_without_a_collector_nothing_is_recorded() -> None:
    assert Telemetry(TelemetryConfig(trace_ratio=1.0), "router").tracer is None
    with record_span(None, "generate", SAMPLED) as span:
        assert span is None and current_span() is None and not outgoing_traceparent()
