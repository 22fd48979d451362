"""Replicas with several weights, as while a deployment gets new ones: each gets its share of the requests."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from flyserve.core.errors import Overloaded
from flyserve.v1 import generation_pb2 as pb
from router.replicas.pools import PAUSE_S
from tests.contract.fakes import FakeDrafter, FakeService, FakeTarget, HashModel, held
from tests.contract.router_rig import EXACT, PLAIN, Rig, make_request, running
from tests.support.serving import becomes_true

PATIENCE_S = 240
WEIGHTS = ("old", "new")


async def weights_of(rig: Rig, mode: int, prompt: Sequence[int] = (40, 41)) -> str:
    """Return the weights that a response says it is from."""
    request = make_request(mode, 5, prompt_token_ids=pb.TokenIds(ids=prompt))
    chunks = [chunk async for chunk in rig.stub.GenerateStream(request, timeout=PATIENCE_S)]
    return chunks[0].origin.weight_fingerprint


async def opened(services: Sequence[FakeService], number: int) -> None:
    """Return when the services have opened this number of sequences together."""
    assert await becomes_true(lambda: sum(each.num_opened for each in services) == number, PATIENCE_S)


@pytest.mark.parametrize("mode", [PLAIN, pb.MODE_DRAFT])
async def test_a_request_gets_the_weights_whose_replicas_have_places(model: Path, mode: int) -> None:
    places = {"max_sequences": 1}
    targets = [FakeTarget(HashModel(), weight_fingerprint=each, **places) for each in WEIGHTS]
    drafters = [
        FakeDrafter(HashModel(), weight_fingerprint=each, standalone_sequences=1, **places)
        for each in WEIGHTS
    ]
    async with running(model, targets, drafters) as rig:
        replicas: Sequence[FakeService] = targets if mode == PLAIN else drafters
        gates = [held(each) for each in replicas]
        calls = []
        for number in (1, 2):
            calls.append(asyncio.create_task(weights_of(rig, mode)))
            await opened(replicas, number)
        for gate in gates:
            gate.set()
        assert sorted(await asyncio.gather(*calls)) == sorted(WEIGHTS)
    assert [each.num_opened for each in replicas] == [1, 1]


async def test_a_request_gets_weights_whose_replicas_have_room_for_it(model: Path) -> None:
    small = FakeTarget(HashModel(context_length=64), weight_fingerprint="new")
    large = FakeTarget(HashModel(), weight_fingerprint="old")
    async with running(model, [small, large]) as rig:
        assert {await weights_of(rig, PLAIN, range(40, 140)) for _ in range(20)} == {"old"}
    assert not small.num_opened


async def test_a_request_gets_only_weights_that_it_was_checked_for(model: Path) -> None:
    """A drafted request is checked for the target with the longest context, which verifies drafts."""
    drafted = FakeTarget(HashModel(), weight_fingerprint="old")
    plain_only = FakeTarget(HashModel(context_length=400), weight_fingerprint="new", plain_only="its layers")
    async with running(model, [drafted, plain_only], [FakeDrafter(HashModel())]) as rig:
        assert {await weights_of(rig, EXACT) for _ in range(20)} == {"old"}
    assert not plain_only.num_opened


async def test_weights_that_refuse_are_not_asked_again_without_a_pause(model: Path) -> None:
    """The other weights have places, so the router's own queue lets the response pass at once."""
    full, free = (FakeTarget(HashModel(), weight_fingerprint=each) for each in WEIGHTS)
    asked: list[float] = []

    async def script(number: int) -> None:
        asked.append(asyncio.get_running_loop().time())
        if number < 3:
            raise Overloaded("full", 60.0)

    full.script = script
    resume = pb.Resumption(choices=[pb.ReceivedChoice(token_ids=[5])], weight_fingerprint="old")
    async with running(model, [full, free]) as rig:
        await rig.stream(PLAIN, 5, resume=resume)
    assert all(later - earlier >= PAUSE_S for earlier, later in pairwise(asked[:3]))
    assert len(asked) >= 3 and not free.num_opened
