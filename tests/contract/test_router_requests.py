"""Rejected gRPC requests and their errors; calls by a client without our stubs."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.rpc import error_details_pb2, status_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from fly.errors import InvalidRequest
from protos.flyserve.v1 import common_pb2
from protos.flyserve.v1 import generation_pb2 as pb
from protos.wire.status import from_rpc_error
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
    ("max_new_tokens", {"max_new_tokens": 0}),
    ("max_new_tokens", {"max_new_tokens": 4097}),
    ("request_id", {"request_id": "x" * 257}),
    ("cache_salt", {"cache_salt": "x" * 257}),
    ("stop", {"stop": ["x"] * 17}),
    ("stop[1]", {"stop": ["x", ""]}),
    ("stop[0]", {"stop": ["x" * 257]}),
    ("sampling.temperature", {"sampling": SAMPLING(temperature=-1)}),
    ("sampling.temperature", {"sampling": SAMPLING(temperature=NAN)}),
    ("sampling.temperature", {"sampling": SAMPLING(temperature=INF)}),
    ("sampling.top_p", {"sampling": SAMPLING(top_p=0)}),
    ("sampling.top_p", {"sampling": SAMPLING(top_p=NAN)}),
    ("sampling.top_k", {"sampling": SAMPLING(top_k=305)}),
    ("sampling.min_p", {"sampling": SAMPLING(min_p=1.5)}),
    ("sampling.repetition_penalty", {"sampling": SAMPLING(repetition_penalty=0)}),
    ("sampling.presence_penalty", {"sampling": SAMPLING(presence_penalty=2.5)}),
    ("sampling.frequency_penalty", {"sampling": SAMPLING(frequency_penalty=NAN)}),
    ("sampling.logit_bias", {"sampling": SAMPLING(logit_bias={304: 1.0})}),
    ("sampling.logit_bias", {"sampling": SAMPLING(logit_bias={3: INF})}),
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
    ("speculation.strict_prefix_tokens", {"speculation": SPECULATION(strict_prefix_tokens=4097)}),
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


async def test_all_faults_are_told_at_once(rig: Rig) -> None:
    sampling, speculation = SAMPLING(temperature=-1, top_p=2), SPECULATION(preset="none")
    found = violations(await rig.rejection(prompt="", sampling=sampling, speculation=speculation))
    assert set(found) == {"prompt", "sampling.temperature", "sampling.top_p", "speculation.preset"}
    assert "flyserve, official, paper, vllm" in found["speculation.preset"]


async def test_a_stream_is_rejected_in_the_same_way(rig: Rig) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.stub.GenerateStream(pb.GenerateRequest()).read()
    assert violations(caught.value) == {"prompt": "is empty, must have at least one token"}


async def test_the_reason_of_a_fault_reaches_a_client(rig: Rig) -> None:
    error = await rig.rejection(prompt_token_ids=pb.TokenIds(ids=[5] * 512), max_new_tokens=4097)
    found = from_rpc_error(error)
    assert isinstance(found, InvalidRequest)
    assert [(violation.field, violation.reason) for violation in found.violations] == [
        ("max_new_tokens", "invalid_value"),
        ("prompt_token_ids", "context_length_exceeded"),
    ]


async def test_a_text_that_is_too_long_is_not_tokenized(rig: Rig) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.stub.Tokenize(pb.TokenizeRequest(text="a" * 1_000_001))
    assert list(violations(caught.value)) == ["text"]


async def test_a_seed_is_drawn_where_there_is_none(rig: Rig) -> None:
    first, second = await rig.generate(PLAIN, 1), await rig.generate(PLAIN, 1)
    assert first.statistics.seed != second.statistics.seed
    assert first.request_id and first.request_id != second.request_id


async def test_more_requests_than_places_are_told_to_come_back(tmp_path: Path) -> None:
    target, release = FakeTarget(HashModel()), asyncio.Event()

    async def wait(step: int) -> None:
        await release.wait()

    target.script = wait
    async with running(save_tokenizer(tmp_path), [target], max_concurrent=1, max_queued=0) as rig:
        running_call = asyncio.create_task(rig.generate(PLAIN, 3))
        await target.stepped.wait()
        error = await rig.rejection(prompt="hello")
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        release.set()
        assert len((await running_call).tokens) == 3
        assert len((await rig.generate(PLAIN, 3)).tokens) == 3


async def test_a_client_that_knows_only_reflection_lists_and_calls_the_service(tmp_path: Path) -> None:
    async with running(save_tokenizer(tmp_path), [FakeTarget(HashModel())]) as rig:
        expected = ids(await rig.generate(PLAIN, 4))
        channel = rig.channel
        assert "flyserve.v1.Generation" in await listed_services(channel)
        pool = descriptor_pool.DescriptorPool()
        await load_file_of(channel, pool, "flyserve.v1.Generation")
        method = pool.FindServiceByName("flyserve.v1.Generation").FindMethodByName("Generate")
        ask, answer = map(message_factory.GetMessageClass, (method.input_type, method.output_type))
        call = channel.unary_unary(
            "/flyserve.v1.Generation/Generate", ask.SerializeToString, answer.FromString
        )
        asked = ask(max_new_tokens=4, prompt_token_ids={"ids": PROMPT}, speculation={"mode": 1})
        response = await call(asked)
    assert [token.id for token in response.choices[0].tokens] == expected


async def reflect(channel: grpc.aio.Channel, **question: Any) -> Any:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(**question)]))
    return await call.read()


async def listed_services(channel: grpc.aio.Channel) -> set[str]:
    answer = await reflect(channel, list_services="")
    return {service.name for service in answer.list_services_response.service}


async def load_file_of(channel: grpc.aio.Channel, pool: descriptor_pool.DescriptorPool, symbol: str) -> None:
    """Adds the file that defines `symbol`, and what it imports, to the pool."""
    answer = await reflect(channel, file_containing_symbol=symbol)
    for content in answer.file_descriptor_response.file_descriptor_proto:
        await add_file(channel, pool, descriptor_pb2.FileDescriptorProto.FromString(content))


async def add_file(channel: grpc.aio.Channel, pool: descriptor_pool.DescriptorPool, file: Any) -> None:
    for name in file.dependency:
        answer = await reflect(channel, file_by_filename=name)
        for content in answer.file_descriptor_response.file_descriptor_proto:
            await add_file(channel, pool, descriptor_pb2.FileDescriptorProto.FromString(content))
    pool.Add(file)
