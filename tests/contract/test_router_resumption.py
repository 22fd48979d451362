"""Resumption: a response continues after a broken stream as if nothing had happened."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos.flyserve.v1 import generation_pb2 as pb
from tests.contract.fakes import FakeDrafter, FakeTarget, HashModel, save_tokenizer
from tests.contract.router_rig import EXACT, PLAIN, PROMPT, Rig, ids, make_request, running


@pytest.fixture
async def targets() -> list[FakeTarget]:
    return [FakeTarget(HashModel(ends_at=60))]


@pytest.fixture
async def rig(tmp_path: Path, targets: list[FakeTarget]) -> AsyncIterator[Rig]:
    drafter = FakeDrafter(HashModel(agreement=0.8, ends_at=60))
    async with running(save_tokenizer(tmp_path), targets, [drafter], replica_wait_s=0.2) as rig:
        yield rig


async def stream(rig: Rig, mode: int = PLAIN, resume: pb.Resumption | None = None, **fields: Any) -> Any:
    """Return the chunks of a response."""
    request = make_request(mode, 30, resume=resume, **fields)
    return [chunk async for chunk in rig.stub.GenerateStream(request, timeout=240)]


def received(chunks: list[pb.GenerateChunk], index: int = 0, **fields: Any) -> pb.ReceivedChoice:
    tokens = [token.id for chunk in chunks if chunk.choice_index == index for token in chunk.tokens]
    return pb.ReceivedChoice(index=index, token_ids=tokens, **fields)


def text(chunks: list[pb.GenerateChunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


@pytest.mark.parametrize("mode", [PLAIN, EXACT])
@pytest.mark.parametrize("stop_length", [0, 2, 4])
async def test_the_rest_follows_whatever_was_received(rig: Rig, mode: int, stop_length: int) -> None:
    whole = text(await stream(rig))
    stops = {"stop": [whole[len(whole) // 2 :][:stop_length]]} if stop_length else {}
    chunks = await stream(rig, mode, **stops)
    for cut in range(1, len(chunks)):
        rest = await stream(rig, mode, pb.Resumption(choices=[received(chunks[:cut])]), **stops)
        assert text(chunks[:cut]) + text(rest) == text(chunks)
        assert tokens_of(rest) == tokens_of(chunks[cut:])
        assert rest[-1].finish_reason == chunks[-1].finish_reason
        assert rest[0].prompt_tokens == len(PROMPT)


def tokens_of(chunks: list[pb.GenerateChunk]) -> list[tuple[int, str]]:
    return [(token.id, token.text) for chunk in chunks for token in chunk.tokens]


async def test_a_long_response_goes_on_as_well(rig: Rig) -> None:
    stub, ids_only = rig.stub, pb.TokenIds(ids=[*PROMPT, 7])
    whole = make_request(PLAIN, 300, prompt_token_ids=ids_only, sampling={"ignore_eos": True})
    chunks = [chunk async for chunk in stub.GenerateStream(whole, timeout=240)]
    whole.resume.choices.append(received(chunks[:280]))
    rest = [chunk async for chunk in stub.GenerateStream(whole, timeout=240)]
    assert tokens_of(rest) == tokens_of(chunks[280:]) and len(rest) == 20


async def test_the_servers_are_told_where_the_response_began(rig: Rig, targets: list[FakeTarget]) -> None:
    chunks = await stream(rig)
    resume = pb.Resumption(choices=[received(chunks[:9])])
    request = make_request(PLAIN, 30, resume=resume, sampling={"min_tokens": 20, "presence_penalty": 1.0})
    await rig.stub.Generate(request)
    opening = targets[0].openings[-1]
    assert opening.prompt_length == len(PROMPT) and opening.sampling.min_tokens == 20


async def test_every_choice_goes_on_by_itself(rig: Rig) -> None:
    chunks = await stream(rig, n=3)
    resume = pb.Resumption(
        choices=[received(chunks, 0, is_finished=True), pb.ReceivedChoice(index=2, token_ids=[5, 6])]
    )
    rest = await stream(rig, resume=resume, n=3)
    assert {chunk.choice_index for chunk in rest} == {1, 2}
    assert received(rest, 1) == received(chunks, 1)


@pytest.mark.parametrize("n", [1, 2])
async def test_a_whole_response_has_only_the_choices_that_go_on(rig: Rig, n: int) -> None:
    request = make_request(PLAIN, 5, n=n, resume=pb.Resumption(choices=[pb.ReceivedChoice(is_finished=True)]))
    response = await rig.stub.Generate(request, timeout=240)
    assert [choice.index for choice in response.choices] == [1][: n - 1]


async def test_the_first_chunk_says_what_a_response_comes_of(rig: Rig) -> None:
    first, second, *_ = await stream(rig, EXACT, sampling={"seed": 7})
    expected = pb.Origin(mode=EXACT, seed=7, weight_fingerprint="w1", max_new_tokens=30)
    assert first.origin == expected and not second.HasField("origin")


async def test_other_weights_do_not_go_on_with_it(rig: Rig) -> None:
    resume = pb.Resumption(choices=[received(await stream(rig))], weight_fingerprint="w2")
    with pytest.raises(grpc.aio.AioRpcError) as rejected:
        await stream(rig, resume=resume)
    assert rejected.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("choices", "part"),
    [
        ([{"index": 1}], r"resume.choices\[0\].index is 1, must be 0 to 0"),
        ([{}, {}], r"resume.choices\[1\].index is 0 again"),
        ([{"token_ids": [304]}], r"resume.choices\[0\].token_ids holds 304, must be 0 to 303"),
        ([{"token_ids": [5] * 30}], r"has 30 tokens, at most 29 leave room"),
    ],
)
async def test_what_cannot_go_on_is_rejected(rig: Rig, choices: list[Any], part: str) -> None:
    resume = pb.Resumption(choices=[pb.ReceivedChoice(**choice) for choice in choices])
    with pytest.raises(grpc.aio.AioRpcError, match=part):
        await stream(rig, resume=resume)


async def test_a_response_that_has_met_its_stop_string_does_not_go_on(rig: Rig) -> None:
    whole = await rig.generate(PLAIN, 30)
    resume = pb.Resumption(choices=[pb.ReceivedChoice(token_ids=ids(whole)[:20])])
    with pytest.raises(grpc.aio.AioRpcError, match="resume holds a stop string"):
        await stream(rig, resume=resume, stop=[whole.tokens[3].text])
