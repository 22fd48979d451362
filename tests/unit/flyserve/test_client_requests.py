"""Requests of the client: what the wire cannot carry, and fields as keywords."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from flyserve import Client, DraftLength, SamplingParams, Span, SpeculationParams
from flyserve.core.errors import InternalError, InvalidRequest
from flyserve.core.request import GenerateRequest
from flyserve.core.types import Mode
from flyserve.received import ReceivedStream
from flyserve.requests import SamplingOptions, SpeculationOptions
from flyserve.v1 import generation_pb2 as pb
from flyserve.wire.generation import request_from_wire
from tests.unit.flyserve.fake_generation import FakeGeneration, fake_generation


@pytest.fixture
def served() -> Iterator[tuple[FakeGeneration, Client]]:
    with fake_generation() as (service, address), Client(address) as client:
        yield service, client


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"sampling": SamplingParams(seed=-1)},
            "sampling.seed is -1, must be a whole number from 0 to 1844674",
        ),
        ({"sampling": SamplingParams(seed=1.5)}, "sampling.seed is 1.5, must be a whole number"),
        ({"sampling": SamplingParams(temperature="hot")}, "sampling.temperature is 'hot', must be a number"),
        (
            {"sampling": SamplingParams(stop_token_ids=(-1,))},
            r"sampling.stop_token_ids\[0\] is -1, must be a whole",
        ),
        (
            {"sampling": SamplingParams(logit_bias={-1: 1.0})},
            "sampling.logit_bias .* must be token ids with numbers",
        ),
        (
            {"speculation": SpeculationParams(mode="quick")},
            "speculation.mode is 'quick', must be one of plain, exact",
        ),
        ({"max_new_tokens": -5}, "max_new_tokens is -5"),
        ({"stop": 3}, "stop is 3, must be a list, each text"),
        ({"stop": ["a", 3]}, r"stop\[1\] is 3, must be text"),
        ({"mode": "quick" * 1000}, "speculation.mode is 'quick.*, must be one of plain, exact"),
        ({"cache_salt": ["x" * 5000]}, r"cache_salt is \['x.*, must be text"),
        ({"temperature": -1}, "sampling.temperature is -1, must be finite and at least 0"),
        ({"temperature": "hot"}, "sampling.temperature is 'hot', must be a number"),
        ({"mode": "quick"}, "speculation.mode is 'quick', must be one of plain, exact"),
        ({"exact_in": "verse"}, "speculation.exact_in"),
        ({"speculation": "exact"}, """speculation is 'exact', must be SpeculationParams; .*mode="exact\""""),
    ],
)
def test_what_the_wire_cannot_carry_names_its_field(
    served: tuple[FakeGeneration, Client], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        served[1].generate("hello", **fields)


def test_a_long_prompt_names_the_token_that_the_wire_cannot_carry(
    served: tuple[FakeGeneration, Client],
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        served[1].generate([7] * 5000 + [-1, 7])
    assert (
        str(raised.value) == "prompt_token_ids.ids[5000] is -1, must be a whole number from 0 to 4294967295"
    )


def test_a_number_of_choices_that_the_server_rejects_is_its_error_and_costs_nothing(
    served: tuple[FakeGeneration, Client],
) -> None:
    for n in (0, 10**6):
        tracemalloc.start()
        stream = served[1].stream("bad", n=n)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        with pytest.raises(InvalidRequest, match="max_new_tokens is 9000"):
            list(stream)
        assert most < 10**6


def test_a_chunk_of_a_choice_that_was_not_requested_is_an_error_of_the_server() -> None:
    received = ReceivedStream(GenerateRequest(prompt="the", n=2))
    received.take(pb.GenerateChunk(choice_index=1))
    with pytest.raises(InternalError, match="choice_index is 2, must be below n, which is 2"):
        received.take(pb.GenerateChunk(choice_index=2))


def test_a_request_that_is_too_large_for_a_message_is_invalid(served: tuple[FakeGeneration, Client]) -> None:
    for ask in (served[1].generate, lambda prompt: list(served[1].stream(prompt))):
        with pytest.raises(InvalidRequest, match=r"request is too large, .* larger than max"):
            ask("x" * (5 << 20))


def test_fields_are_keywords(served: tuple[FakeGeneration, Client]) -> None:
    service, client = served
    object_ = SamplingParams(temperature=0.9, seed=5)
    client.generate(
        "hello", sampling=object_, temperature=0.5, mode="exact", draft_length=4, exact_in="code", stop="x"
    )
    (sent,) = map(request_from_wire, service.requests)
    assert sent.sampling == SamplingParams(temperature=0.5, seed=5) and sent.stop == ("x",)
    assert sent.speculation == SpeculationParams(
        mode=Mode.EXACT, draft_length=DraftLength(4), exact_in=(Span.CODE,)
    )


def test_every_field_of_sampling_and_speculation_is_a_keyword() -> None:
    for kind, options in ((SamplingParams, SamplingOptions), (SpeculationParams, SpeculationOptions)):
        assert {field.name for field in fields(kind)} == set(options.__annotations__)


@pytest.mark.parametrize("name", ["generate", "stream", "chat", "stream_chat"])
def test_a_wrong_keyword_names_the_function_that_was_called(
    served: tuple[FakeGeneration, Client], name: str
) -> None:
    with pytest.raises(TypeError, match=rf"^Client\.{name}\(\) .*'temprature'; did you mean 'temperature'"):
        getattr(served[1], name)("hello", temprature=0.5)
    assert served[0].requests == []
