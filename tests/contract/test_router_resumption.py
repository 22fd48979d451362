"""Resumption: a response continues after a broken stream as if nothing had happened."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from flyserve.v1 import generation_pb2 as pb
from tests.contract.fakes import FakeDrafter, FakeTarget, HashModel, save_tokenizer
from tests.contract.router_rig import PLAIN, PROMPT, Rig, ids, joined, make_request, running


@pytest.fixture
async def targets() -> list[FakeTarget]:
    return [FakeTarget(HashModel(ends_at=60))]


@pytest.fixture
async def rig(tmp_path: Path, targets: list[FakeTarget]) -> AsyncIterator[Rig]:
    drafter = FakeDrafter(HashModel(agreement=0.8, ends_at=60))
    async with running(save_tokenizer(tmp_path), targets, [drafter], replica_wait_s=0.2) as rig:
        yield rig


async def test_the_services_get_the_place_where_the_response_began(
    rig: Rig, targets: list[FakeTarget]
) -> None:
    first = await rig.stream(PLAIN, 9)
    resume = pb.Resumption(choices=[pb.ReceivedChoice(token_ids=joined(first))])
    rest = await rig.stream(PLAIN, 30, resume=resume, sampling={"min_tokens": 20, "presence_penalty": 1.0})
    opening = targets[0].openings[-1]
    assert opening.prompt_length == len(PROMPT) and opening.sampling.min_tokens == 20
    assert rest[0].prompt_tokens == len(PROMPT)


@pytest.mark.parametrize("n", [1, 2])
async def test_a_whole_response_has_only_the_choices_that_go_on(rig: Rig, n: int) -> None:
    request = make_request(PLAIN, 5, n=n, resume=pb.Resumption(choices=[pb.ReceivedChoice(is_finished=True)]))
    response = await rig.stub.Generate(request, timeout=240)
    assert [choice.index for choice in response.choices] == [1][: n - 1]


async def test_other_weights_do_not_continue_it(rig: Rig) -> None:
    resume = pb.Resumption(choices=[pb.ReceivedChoice(token_ids=[5])], weight_fingerprint="w2")
    error = await rig.error_of(make_request(PLAIN, 30, resume=resume))
    assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_it_goes_on_with_equal_kernels_or_says_that_it_does_not(tmp_path: Path) -> None:
    targets = [FakeTarget(HashModel(), kernels=kernels) for kernels in ("k1", "k2", "k2")]
    async with running(save_tokenizer(tmp_path), targets, balancing="round_robin") as rig:
        chunks = await rig.stream(PLAIN, 9)
        named = [chunk.kernels for chunk in chunks if chunk.kernels]
        assert named == [chunks[0].kernels] and named[0] in ("k1", "k2")
        for kernels, others in (("k1", False), ("k2", False), ("k1", False), ("k3", True), ("", False)):
            resume = pb.Resumption(choices=[pb.ReceivedChoice(token_ids=joined(chunks), kernels=kernels)])
            rest = await rig.stream(PLAIN, 30, resume=resume)
            assert (rest[0].kernels == kernels) != (others or not kernels)
            assert any("other kernels" in warning for warning in rest[-1].warnings) == others


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
        await rig.stream(PLAIN, 30, resume=resume)


async def test_a_response_that_has_met_its_stop_string_does_not_go_on(rig: Rig) -> None:
    whole = await rig.generate(PLAIN, 30)
    resume = pb.Resumption(choices=[pb.ReceivedChoice(token_ids=ids(whole)[:20])])
    with pytest.raises(grpc.aio.AioRpcError, match="resume holds a stop string"):
        await rig.stream(PLAIN, 30, resume=resume, stop=[whole.tokens[3].text])


async def test_a_long_response_is_continued_as_well(rig: Rig) -> None:
    asked = {"prompt_token_ids": pb.TokenIds(ids=[*PROMPT, 7]), "sampling": {"ignore_eos": True}}
    whole = joined(await rig.stream(PLAIN, 300, **asked))
    resume = pb.Resumption(choices=[pb.ReceivedChoice(token_ids=whole[:280])])
    assert joined(await rig.stream(PLAIN, 300, resume=resume, **asked)) == whole[280:]
