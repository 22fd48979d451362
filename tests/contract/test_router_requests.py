"""Rejected gRPC requests and their errors; calls by a client without our stubs."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.rpc import error_details_pb2, status_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from flyserve.core.errors import InvalidRequest
from flyserve.v1 import common_pb2
from flyserve.v1 import generation_pb2 as pb
from flyserve.wire.status import from_rpc_error
from tests.contract.fakes import FakeDrafter, FakeTarget, HashModel, save_tokenizer
from tests.contract.router_rig import EXACT, PLAIN, PROMPT, Rig, ids, running

SAMPLING = common_pb2.SamplingParams
SPECULATION = pb.SpeculationParams


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    target, drafter = FakeTarget(HashModel()), FakeDrafter(HashModel())
    async with running(save_tokenizer(tmp_path), [target], [drafter]) as rig:
        yield rig


def violations(error: grpc.aio.AioRpcError) -> dict[str, str]:
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    details = dict(error.trailing_metadata() or ())["grpc-status-details-bin"]
    bad_request = error_details_pb2.BadRequest()
    (detail,) = status_pb2.Status.FromString(details).details
    assert detail.Unpack(bad_request)
    return {v.field: v.description for v in bad_request.field_violations}


NAN, INF = float("nan"), float("inf")
BAD: list[tuple[str, dict[str, Any]]] = [
    ("prompt", {"prompt": ""}),
    ("prompt", {"prompt": "a b " * 300_000}),
    ("prompt_token_ids", {"prompt_token_ids": pb.TokenIds()}),
    ("prompt_token_ids", {"prompt_token_ids": pb.TokenIds(ids=[5] * 512)}),
    ("prompt_token_ids.ids[1]", {"prompt_token_ids": pb.TokenIds(ids=[5, 304])}),
    ("max_new_tokens", {"max_new_tokens": 131_073}),
    ("request_id", {"request_id": "x" * 257}),
    ("cache_salt", {"cache_salt": "x" * 257}),
    ("stop", {"stop": ["x"] * 17}),
    ("stop[1]", {"stop": ["x", ""]}),
    ("stop[0]", {"stop": ["x" * 257]}),
    ("sampling.temperature", {"sampling": SAMPLING(temperature=NAN)}),
    ("sampling.logit_bias", {"sampling": SAMPLING(logit_bias={304: 1.0})}),
    ("sampling.stop_token_ids[0]", {"sampling": SAMPLING(stop_token_ids=[304])}),
    ("sampling.min_tokens", {"max_new_tokens": 4, "sampling": SAMPLING(min_tokens=5)}),
    ("speculation.mode", {"speculation": SPECULATION(mode=9)}),  # type: ignore[arg-type]
    ("speculation.preset", {"speculation": SPECULATION(preset="vlm")}),
    ("speculation.draft_length.max", {"speculation": SPECULATION(draft_length=pb.DraftLength(max=65))}),
    ("speculation.window", {"speculation": SPECULATION(window=0)}),
    ("speculation.threshold", {"speculation": SPECULATION(threshold=NAN)}),
    ("speculation.threshold", {"speculation": SPECULATION(threshold=-0.1)}),
    ("speculation.threshold", {"speculation": SPECULATION(threshold=INF)}),
    ("speculation.max_logprob_gap", {"speculation": SPECULATION(max_logprob_gap=-1)}),
    ("speculation.max_logprob_gap", {"speculation": SPECULATION(max_logprob_gap=NAN)}),
    ("speculation.tail", {"speculation": SPECULATION(tail=7)}),  # type: ignore[arg-type]
    ("speculation.entropy", {"speculation": SPECULATION(entropy=7)}),  # type: ignore[arg-type]
    ("speculation.carry_after", {"speculation": SPECULATION(preset="flyserve", carry_after=7)}),
    ("speculation.strict_prefix_tokens", {"speculation": SPECULATION(strict_prefix_tokens=131_073)}),
    ("n", {"n": 0}),
    ("n", {"n": 17}),
    ("logprobs", {"logprobs": 21}),
]


async def test_every_bad_input_names_its_field_and_the_server_goes_on(rig: Rig) -> None:
    for field, fields in BAD:
        if "prompt" not in fields:
            fields.setdefault("prompt_token_ids", pb.TokenIds(ids=PROMPT))
        assert list(violations(await rig.rejection(**fields))) == [field], fields.keys()
    assert len((await rig.generate(EXACT, 5)).tokens) == 5


async def test_a_stream_is_rejected_in_the_same_way(rig: Rig) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.stub.GenerateStream(pb.GenerateRequest()).read()
    assert violations(caught.value) == {"prompt": "is empty, must have at least one token"}


async def test_the_reason_of_a_fault_reaches_a_client(rig: Rig) -> None:
    error = await rig.rejection(prompt_token_ids=pb.TokenIds(ids=[5] * 512), max_new_tokens=131_073)
    found = from_rpc_error(error)
    assert isinstance(found, InvalidRequest)
    assert [(violation.field, violation.reason) for violation in found.violations] == [
        ("max_new_tokens", "invalid_value"),
        ("prompt_token_ids", "context_length_exceeded"),
    ]


async def test_a_seed_is_drawn_where_there_is_none(rig: Rig) -> None:
    first, second = await rig.generate(PLAIN, 1), await rig.generate(PLAIN, 1)
    assert first.statistics.seed != second.statistics.seed
    assert first.request_id and first.request_id != second.request_id


async def test_a_client_that_knows_only_reflection_lists_and_calls_the_service(model: Path) -> None:
    async with running(model, [FakeTarget(HashModel())]) as rig:
        expected = ids(await rig.generate(PLAIN, 4))
        found = await asyncio.to_thread(called_by_reflection, rig.addresses[0])
    assert found == expected


def called_by_reflection(address: str) -> list[int]:
    """Generate by descriptors that the server itself describes."""
    with grpc.insecure_channel(address) as channel:
        described = ProtoReflectionDescriptorDatabase(channel)
        assert "flyserve.v1.Generation" in described.get_services()
        pool = descriptor_pool.DescriptorPool(described)
        method = pool.FindServiceByName("flyserve.v1.Generation").FindMethodByName("Generate")
        ask, answer = map(message_factory.GetMessageClass, (method.input_type, method.output_type))
        call = channel.unary_unary(
            "/flyserve.v1.Generation/Generate", ask.SerializeToString, answer.FromString
        )
        asked = ask(max_new_tokens=4, prompt_token_ids={"ids": PROMPT}, speculation={"mode": 1})
        return [token.id for token in call(asked).choices[0].tokens]
