"""The public service's wire form: what goes in comes out."""

from dataclasses import replace

import pytest
from router.codec.generation import request_from_wire, speculation_from_wire, speculation_to_wire
from router.codec.response import info_to_wire, piece_to_wire, response_to_wire, statistics_to_wire
from router.generation.response import (
    DeploymentInfo,
    Ending,
    Header,
    Piece,
    RankedToken,
    ResponseToken,
    TokenLogprobs,
)

from fly.messages import ModelInfo, Role
from fly.request import SamplingParams
from fly.response import Statistics
from fly.types import FinishReason, Mode, RejectionReason, Token, Verdict
from protos.flyserve.v1 import common_pb2
from protos.flyserve.v1 import generation_pb2 as pb
from router.requests.request import GenerateRequest, SpeculationParams

TOKENS = tuple(
    ResponseToken(Token(3 + n, verdict, 9 + n, 0.5), "a", "b") for n, verdict in enumerate(Verdict)
)
FULL = SpeculationParams(
    "fly", "paper", 0, False, 3, 0.25, "carry", 1, True, False, 2, "normalized", "goodput"
)
ENDING = Ending(FinishReason.STOP_TOKEN, Statistics(rounds=2, emitted=5), ("mind this",))


def test_an_empty_request_leaves_everything_open() -> None:
    assert request_from_wire(pb.GenerateRequest()) == GenerateRequest(prompt="")


def test_a_full_request_is_taken_over() -> None:
    wire = pb.GenerateRequest(
        request_id="r",
        prompt_token_ids=pb.TokenIds(ids=[1, 2]),
        max_new_tokens=0,
        sampling=common_pb2.SamplingParams(min_tokens=2, seed=0, logit_bias={4: 0.5}),
        stop=["a"],
        speculation=pb.SpeculationParams(mode=pb.MODE_EXACT, draft_length=0),
        priority=-1,
        cache_salt="s",
        n=0,
        logprobs=0,
    )
    assert request_from_wire(wire) == GenerateRequest(
        prompt=(1, 2),
        request_id="r",
        max_new_tokens=0,
        sampling=SamplingParams(min_tokens=2, logit_bias=((4, 0.5),)),
        seed=0,
        stop=("a",),
        speculation=SpeculationParams(mode="exact", draft_length=0),
        priority=-1,
        cache_salt="s",
        n=0,
        logprobs=0,
    )


@pytest.mark.parametrize("mode", ["", *(mode.value for mode in Mode)])
def test_speculation_comes_back(mode: str) -> None:
    for params in (SpeculationParams(mode), replace(FULL, mode=mode)):
        assert speculation_from_wire(speculation_to_wire(params)) == params


def test_an_unknown_mode_keeps_its_number() -> None:
    wire = pb.SpeculationParams.FromString(b"\x08\x2a\x38\x2b\x60\x2c")
    params = speculation_from_wire(wire)
    assert (params.mode, params.tail, params.entropy) == ("42", "43", "44")


def test_a_piece_carries_the_header_once_and_the_ending_last() -> None:
    first = piece_to_wire(2, Piece("a", TOKENS), Header("r", 7))
    assert first.choice_index == 2
    assert (first.text, first.request_id, first.prompt_tokens) == ("a", "r", 7)
    assert [token.verdict for token in first.tokens] == [
        pb.VERDICT_EXACT,
        pb.VERDICT_RESCUED,
        pb.VERDICT_CORRECTED,
        pb.VERDICT_BONUS,
        pb.VERDICT_PLAIN,
    ]
    assert not first.finish_reason and not first.HasField("statistics")
    last = piece_to_wire(0, Piece("", (), ENDING), None)
    assert last.finish_reason == pb.FINISH_REASON_STOP_TOKEN and last.statistics.emitted == 5
    assert not last.request_id and list(last.warnings) == ["mind this"]


def test_a_response_joins_its_pieces() -> None:
    pieces = [Piece("a", TOKENS[:2]), Piece("b", TOKENS[2:], ENDING)]
    wire = response_to_wire(Header("r", 7), [pieces, [Piece("c", (), ENDING)]])
    assert [(choice.index, choice.text) for choice in wire.choices] == [(0, "ab"), (1, "c")]
    assert [token.id for token in wire.choices[0].tokens] == [3, 4, 5, 6, 7]
    assert list(wire.warnings) == ["mind this"], "what both choices warn of is said once"


def test_a_token_tells_its_text_and_what_the_target_would_have_said() -> None:
    logprobs = TokenLogprobs(-1.5, -0.5, (RankedToken(9, "b", -0.5),))
    token = TOKENS[1]._replace(logprobs=logprobs)
    (wire,) = piece_to_wire(0, Piece("a", (token,)), None).tokens
    assert (wire.text, wire.choice_text) == ("a", "b")
    assert (wire.logprobs.token, wire.logprobs.choice, wire.logprobs.top[0].id) == (-1.5, -0.5, 9)
    assert not piece_to_wire(0, Piece("a", TOKENS[:1]), None).tokens[0].HasField("logprobs")


def test_every_statistic_has_its_field() -> None:
    statistics = Statistics(draft_round_tokens=9)
    names = [f.name for f in pb.Statistics.DESCRIPTOR.fields]
    plain = [name for name in names if name != "tau" and not name.startswith("rejected_by_")]
    for number, name in enumerate(plain, start=1):
        setattr(statistics, name, number)
    for number, rejection in enumerate(RejectionReason, start=1):
        statistics.rejections[rejection] = number
    wire = statistics_to_wire(statistics)
    assert [getattr(wire, name) for name in plain] == list(range(1, len(plain) + 1))
    assert [getattr(wire, f"rejected_by_{rejection.value}") for rejection in RejectionReason] == [
        1,
        2,
        3,
        4,
        5,
    ]
    assert wire.tau == 9 / wire.draft_rounds


def test_info_without_a_drafter_has_none() -> None:
    target = ModelInfo(Role.TARGET, "big", "w", "a", "t", 100, 64, "float32", 1, 0, "")
    wire = info_to_wire(DeploymentInfo(target, None, FULL, 4096, 64, 16, 20, ("vllm",)))
    assert wire.target.model_id == "big" and not wire.HasField("drafter")
    assert wire.default_speculation.mode == pb.MODE_FLY
