"""The public service's wire form: each message decodes to the value that was encoded."""

from dataclasses import MISSING, fields
from dataclasses import replace as replaced
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor

from flyserve.core import messages
from flyserve.core.endpoints import Endpoint, Snapshot
from flyserve.core.errors import InvalidRequest
from flyserve.core.messages import ModelInfo, Role
from flyserve.core.request import (
    ChatMessage,
    DraftLength,
    GenerateRequest,
    ReceivedChoice,
    Resumption,
    RuleOverrides,
    SamplingParams,
    SpeculationParams,
)
from flyserve.core.response import (
    Choice,
    Chunk,
    DeploymentInfo,
    Origin,
    Response,
    Round,
    Statistics,
    TextToken,
    join_chunks,
)
from flyserve.core.sequence import StaleReason
from flyserve.core.types import (
    Coupling,
    EntropyEstimator,
    FinishReason,
    FlyRule,
    Logprobs,
    Mode,
    RankedToken,
    RejectionReason,
    TailPolicy,
    Token,
    Verdict,
)
from flyserve.v1 import common_pb2, registry_pb2
from flyserve.v1 import generation_pb2 as pb
from flyserve.wire.codec import decode, encode
from flyserve.wire.enums import numbers
from flyserve.wire.generation import (
    chunk_from_wire,
    chunk_to_wire,
    deployment_from_wire,
    deployment_to_wire,
    request_from_wire,
    request_to_wire,
    response_from_wire,
    response_to_wire,
)

TOKENS = tuple(Token(3 + n, verdict, 9 + n, 0.5, "a", "b") for n, verdict in enumerate(Verdict))
ROUNDS = (Round(0, 5, 3, 0.5, 0.25, 0.125, 0.0, 1.0),)
FULL = SpeculationParams(
    mode=Mode.FLY,
    preset="paper",
    draft_length=DraftLength(0),
    sub_drafter=False,
    window=3,
    threshold=0.25,
    tail=TailPolicy.CARRY,
    carry_after=1,
    guard_stops=True,
    guard_excluded=False,
    strict_prefix_tokens=2,
    entropy=EntropyEstimator.NORMALIZED,
    max_logprob_gap=1.5,
    reproducible_drafts=False,
)
REQUEST = GenerateRequest(
    prompt=(1, 2),
    request_id="r",
    max_new_tokens=0,
    sampling=SamplingParams(min_tokens=2, seed=0, logit_bias={4: 0.5}, coupling=Coupling.REJECTION),
    stop=("a",),
    speculation=FULL,
    priority=-1,
    cache_salt="s",
    n=0,
    logprobs=0,
    resume=Resumption((ReceivedChoice(1, (5,), True),), "w"),
)
TARGET = ModelInfo(Role.TARGET, "big", "w", "a", "t", 100, 64, "float32", 1, 0, "")
MESSAGES: list[tuple[type[Any], Descriptor]] = [
    (SamplingParams, common_pb2.SamplingParams.DESCRIPTOR),
    (SpeculationParams, pb.SpeculationParams.DESCRIPTOR),
    (DraftLength, pb.DraftLength.DESCRIPTOR),
    (Resumption, pb.Resumption.DESCRIPTOR),
    (ReceivedChoice, pb.ReceivedChoice.DESCRIPTOR),
    (ChatMessage, pb.ChatMessage.DESCRIPTOR),
    (Chunk, pb.GenerateChunk.DESCRIPTOR),
    (Choice, pb.Choice.DESCRIPTOR),
    (Round, pb.Round.DESCRIPTOR),
    (Statistics, pb.Statistics.DESCRIPTOR),
    (Origin, pb.Origin.DESCRIPTOR),
    (TextToken, pb.TextToken.DESCRIPTOR),
    (DeploymentInfo, pb.DeploymentInfo.DESCRIPTOR),
    (messages.ModelInfo, common_pb2.ModelInfo.DESCRIPTOR),
    (messages.Load, common_pb2.Load.DESCRIPTOR),
    (messages.StepTimes, common_pb2.StepTimes.DESCRIPTOR),
    (messages.Open, common_pb2.Open.DESCRIPTOR),
    (messages.Close, common_pb2.Close.DESCRIPTOR),
    (messages.Stale, common_pb2.Stale.DESCRIPTOR),
    (messages.SequenceUpdate, common_pb2.SequenceUpdate.DESCRIPTOR),
    (Endpoint, registry_pb2.Endpoint.DESCRIPTOR),
    (Snapshot, registry_pb2.Snapshot.DESCRIPTOR),
]


@pytest.mark.parametrize(("kind", "descriptor"), MESSAGES)
def test_a_message_has_the_fields_of_its_dataclass(kind: type[Any], descriptor: Descriptor) -> None:
    named = kind._fields if issubclass(kind, tuple) else [each.name for each in fields(kind)]
    assert set(named) == set(descriptor.fields_by_name)


def test_only_the_prompt_of_a_request_and_the_retries_of_a_response_have_no_field_of_their_name() -> None:
    request, response = pb.GenerateRequest.DESCRIPTOR, pb.GenerateResponse.DESCRIPTOR
    own = {each.name for each in fields(GenerateRequest)} - {"fills_context"}
    assert own == set(request.fields_by_name) - {"prompt_token_ids"}
    assert {each.name for each in fields(Response)} == {*response.fields_by_name, "resumed"}


def test_every_override_is_a_field_of_the_rule() -> None:
    assert {each.name for each in fields(RuleOverrides)} == {each.name for each in fields(FlyRule)} - {
        "min_following",
        "shrinks",
    }


@pytest.mark.parametrize(
    ("kind", "descriptor"),
    [
        (Mode, pb.Mode.DESCRIPTOR),
        (TailPolicy, pb.TailPolicy.DESCRIPTOR),
        (Verdict, pb.Verdict.DESCRIPTOR),
        (FinishReason, pb.FinishReason.DESCRIPTOR),
        (Coupling, common_pb2.Coupling.DESCRIPTOR),
        (EntropyEstimator, common_pb2.EntropyEstimator.DESCRIPTOR),
        (StaleReason, common_pb2.StaleReason.DESCRIPTOR),
        (Role, common_pb2.Role.DESCRIPTOR),
    ],
)
def test_an_enumeration_has_the_same_members_on_the_wire(kind: Any, descriptor: Any) -> None:
    found = numbers(kind, descriptor)
    assert sorted(found.values()) == sorted(number for number in descriptor.values_by_number if number)


def test_an_empty_request_leaves_everything_open() -> None:
    assert request_from_wire(pb.GenerateRequest()) == GenerateRequest(prompt="")


def test_a_full_request_is_decoded_as_it_was_encoded() -> None:
    for request in (
        REQUEST,
        replaced(REQUEST, prompt="text"),
        replaced(REQUEST, prompt=()),
        GenerateRequest(prompt="", n=3),
    ):
        wire = pb.GenerateRequest.FromString(request_to_wire(request).SerializeToString())
        assert request_from_wire(wire) == request


@pytest.mark.parametrize("mode", [None, *Mode])
def test_speculation_is_decoded_as_it_was_encoded(mode: Mode | None) -> None:
    for params in (SpeculationParams(mode=mode), replaced(FULL, mode=mode)):
        assert decode(SpeculationParams, encode(params, pb.SpeculationParams())) == params


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        (b"\x08\x2a", "speculation.mode is 42, must be one of plain, exact, fly"),
        (b"\x38\x2b", "speculation.tail is 43, must be one of reject, carry"),
        (b"\x60\x2c", "speculation.entropy is 44, must be one of top_k, normalized"),
        (b"\x1a\x02\x08\x2d", "speculation.draft_length.policy is not supported: all drafts have"),
    ],
)
def test_an_unknown_number_is_rejected_with_its_field(wire: bytes, message: str) -> None:
    request = pb.GenerateRequest(speculation=pb.SpeculationParams.FromString(wire))
    with pytest.raises(InvalidRequest, match=message):
        request_from_wire(request)


def test_a_chunk_is_decoded_as_it_was_encoded() -> None:
    origin = Origin(Mode.EXACT, 2**64 - 1, "w", 9)
    first = Chunk(text="a", tokens=TOKENS, choice_index=2, request_id="r", prompt_tokens=7, origin=origin)
    last = Chunk(
        text="",
        finish_reason=FinishReason.STOP_TOKEN,
        statistics=Statistics(rounds=2, emitted=5, tau=2.5),
        warnings=("mind this",),
        rounds=ROUNDS,
    )
    for chunk in (first, last, Chunk(text="b")):
        wire = chunk_to_wire(chunk)
        assert chunk_from_wire(pb.GenerateChunk.FromString(wire.SerializeToString())) == chunk
    assert not chunk_to_wire(first).HasField("statistics") and not chunk_to_wire(last).HasField("origin")


def test_a_response_joins_its_chunks() -> None:
    statistics = Statistics(emitted=5)
    chunks = [
        Chunk(text="a", tokens=TOKENS[:2]),
        Chunk(text="b", tokens=TOKENS[2:], finish_reason=FinishReason.LENGTH, statistics=statistics),
    ]
    choice = join_chunks(0, chunks)
    assert (choice.text, choice.finish_reason, choice.statistics) == ("ab", FinishReason.LENGTH, statistics)
    assert choice.tokens == TOKENS
    response = Response(
        request_id="r", choices=(choice, join_chunks(1, [])), prompt_tokens=7, warnings=("w",)
    )
    wire = pb.GenerateResponse.FromString(response_to_wire(response).SerializeToString())
    assert response_from_wire(wire) == response


def test_a_token_has_its_text_and_its_log_probabilities() -> None:
    logprobs = Logprobs(-1.5, -0.5, (RankedToken(9, "b", -0.5),))
    token = TOKENS[1]._replace(logprobs=logprobs)
    (wire,) = chunk_to_wire(Chunk(text="a", tokens=(token,))).tokens
    assert (wire.text, wire.choice_text) == ("a", "b")
    assert (wire.logprobs.token, wire.logprobs.choice, wire.logprobs.top[0].id) == (-1.5, -0.5, 9)
    assert chunk_from_wire(chunk_to_wire(Chunk(text="a", tokens=(token,)))).tokens == (token,)
    assert not chunk_to_wire(Chunk(text="a", tokens=TOKENS[:1])).tokens[0].HasField("logprobs")


def test_every_reason_of_a_rejection_has_its_count() -> None:
    names = {each.name for each in fields(Statistics)}
    assert {f"rejected_by_{reason.value}" for reason in RejectionReason} <= names
    assert all(each.default is not MISSING for each in fields(Statistics))


def test_info_without_a_drafter_has_none() -> None:
    info = DeploymentInfo(target=TARGET, default_speculation=FULL, choices_limit=16, presets=("vllm",))
    wire = deployment_to_wire(info)
    assert wire.target.model_id == "big" and not wire.HasField("drafter")
    assert deployment_from_wire(pb.DeploymentInfo.FromString(wire.SerializeToString())) == info


def test_a_model_without_a_role_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="role is 0, must be one of target, drafter, sub_drafter"):
        decode(ModelInfo, common_pb2.ModelInfo())
