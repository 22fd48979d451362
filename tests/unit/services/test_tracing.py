"""How spans come together, and who decides what is traced."""

import asyncio
from contextvars import copy_context

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from services.common.telemetry.config import TelemetryConfig
from services.common.telemetry.otlp import RecordingTracer
from services.common.telemetry.process import create_tracer
from services.common.telemetry.spans import Part
from services.common.telemetry.tracing import NO_SPAN, NoTracer, current_span

CLIENTS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Taker:
    """Keeps what is handed over."""

    def __init__(self, ratio: float = 1.0) -> None:
        self.parts: list[Part] = []
        self.tracer = RecordingTracer(self.parts.append, lambda: None, ratio)

    @property
    def spans(self) -> list[Span]:
        return [Span.FromString(span) for part in self.parts for span in part.spans]


def wire_id(span_id: int) -> bytes:
    return span_id.to_bytes(8, "big")


def test_a_long_request_is_handed_over_in_parts_and_wholly_at_its_end() -> None:
    taker = Taker()
    with taker.tracer.request("generate", "") as request:
        for _ in range(100):
            with request.child("round"):
                pass
        assert 0 < len(taker.spans) < 100
    assert [span.name for span in taker.spans] == ["round"] * 100 + ["generate"]


def test_a_question_that_outlives_its_stream_is_not_lost() -> None:
    taker = Taker()
    with taker.tracer.stream((("traceparent", CLIENTS),)) as stream:
        with stream.step("drafter.draft", 7) as step:
            pass
        late, its_task = stream.call("proposal"), copy_context()
        its_task.run(late.__enter__)
    its_task.run(late.__exit__, None, None, None)
    draft, proposal = taker.spans
    assert (draft.parent_span_id, draft.span_id) == (wire_id(7), wire_id(step.span_id))
    assert proposal.parent_span_id == draft.span_id


def test_a_step_that_names_no_span_belongs_to_what_opened_its_stream() -> None:
    taker = Taker()
    with taker.tracer.stream((("traceparent", CLIENTS),)) as stream, stream.step("target.verify", 0):
        pass
    assert taker.spans[0].parent_span_id.hex() == CLIENTS.split("-")[2]


@pytest.mark.parametrize("ratio", [0.0, 0.1, 1.0])
def test_a_share_of_the_requests_is_traced(ratio: float) -> None:
    taker, number = Taker(ratio), 5000
    for _ in range(number):
        with taker.tracer.request("generate", ""):
            pass
    assert len(taker.spans) / number == pytest.approx(ratio, abs=0.03)
    assert len({span.trace_id for span in taker.spans}) == len(taker.spans)


async def test_the_current_span_is_that_of_the_task() -> None:
    taker = Taker()

    async def current_id() -> int:
        return current_span().span_id

    with taker.tracer.request("generate", "") as request:
        own = asyncio.create_task(current_id())
        with request.child("round") as round:
            assert await asyncio.create_task(current_id()) == round.span_id
        assert await own == request.span_id
    assert current_span() is NO_SPAN and await current_id() == 0


def test_without_a_collector_nothing_is_traced_whatever_a_client_says() -> None:
    tracer = create_tracer(TelemetryConfig(trace_ratio=1.0), "router")
    assert isinstance(tracer, NoTracer)
    assert tracer.request("generate", CLIENTS) is NO_SPAN
    assert tracer.stream((("traceparent", CLIENTS),)) is NO_SPAN
    assert NO_SPAN.metadata is None and NO_SPAN.child("round").span_id == 0
