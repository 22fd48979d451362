"""Spans that are written piece by piece are those that protobuf would write at once."""

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource

from services.common.telemetry.encoding import (
    CLIENT,
    FAILED,
    encode_notes,
    encode_own,
    encode_resource,
    encode_shared,
    encode_trace,
    request_of,
)

IDS = st.integers(1, 2**64 - 1)
TIMES = st.integers(0, 2**64 - 1)


@given(st.integers(1, 2**128 - 1), IDS, IDS | st.just(0), TIMES, TIMES, st.booleans())
def test_the_pieces_make_one_span(
    trace_id: int, span_id: int, parent_id: int, started_ns: int, ended_ns: int, is_remote: bool
) -> None:
    pieces = (
        encode_trace(trace_id),
        encode_shared("verify", CLIENT, is_remote),
        encode_own(span_id, parent_id, started_ns, ended_ns),
        encode_notes({"drafted": 15}),
        FAILED,
    )
    whole = Span(
        trace_id=trace_id.to_bytes(16, "big"),
        span_id=span_id.to_bytes(8, "big"),
        parent_span_id=parent_id.to_bytes(8, "big") if parent_id else b"",
        name="verify",
        kind=Span.SPAN_KIND_CLIENT,
        start_time_unix_nano=started_ns,
        end_time_unix_nano=ended_ns,
        flags=0x300 if is_remote else 0x100,
    )
    whole.attributes.add(key="drafted", value=AnyValue(int_value=15))
    whole.status.code = 2  # type: ignore[assignment]
    assert Span.FromString(b"".join(pieces)) == whole


def test_every_kind_of_note_keeps_its_kind() -> None:
    notes = {
        "yes": True,
        "no": False,
        "few": 1,
        "none": 0,
        "many": 10**12,
        "less": -1,
        "real": 1.0,
        "word": "x",
    }
    told = Span.FromString(encode_notes(notes)).attributes
    kinds = {note.key: note.value.WhichOneof("value") for note in told}
    values = {note.key: getattr(note.value, kinds[note.key]) for note in told}
    assert values == notes and list(values) == list(notes)
    assert {type(notes[key]).__name__: kind for key, kind in kinds.items()} == {
        "bool": "bool_value",
        "int": "int_value",
        "float": "double_value",
        "str": "string_value",
    }


def test_a_message_says_once_who_tells_its_spans() -> None:
    spans = [encode_trace(7) + encode_own(number, 0, 1, 2) for number in (1, 2, 3)]
    request = request_of(encode_resource(Resource({"service.name": "flyserve-router"})), spans)
    (told,) = request.resource_spans
    (scope,) = told.scope_spans
    assert told.resource.attributes[0].value.string_value == "flyserve-router"
    assert scope.scope.name == "flyserve"
    assert [int.from_bytes(span.span_id, "big") for span in scope.spans] == [1, 2, 3]
