"""Router behaviour when replicas die, lose state, answer wrongly or hang, and when clients cancel."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import grpc
import pytest

from flyserve.core.messages import Draft, ProposalCounts, Stale, StaleReason, StepTimes, Verification
from flyserve.v1 import target_pb2
from flyserve.wire import streams as wire_streams
from services.common import streams
from tests.contract import fakes
from tests.contract.fakes import (
    VOCAB_SIZE,
    FakeDrafter,
    FakeService,
    FakeTarget,
    HashModel,
    answers_at,
    closed,
    dies_at,
)
from tests.contract.router_rig import EXACT, FLY, PLAIN, PROMPT, ids, make_request, running
from tests.support.clock import pass_time

PATIENCE_S = 240


@pytest.fixture(params=["sockets", "one process"], autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the replicas in processes of their own, as far as the router sees, or in its own one."""
    if request.param == "one process":
        names = itertools.count()
        monkeypatch.setattr(fakes, "make_address", lambda: f"inprocess:{next(names)}")


def hangs(service: FakeService) -> asyncio.Event:
    """Hang from the third step on; the event is set when it does."""
    hanging = asyncio.Event()

    async def script(number: int) -> None:
        if number >= 3:
            hanging.set()
            await asyncio.Event().wait()

    service.script = script
    return hanging


def pair(agreement: float = 0.85) -> tuple[FakeTarget, FakeDrafter]:
    return FakeTarget(HashModel(certain_share=0.3)), FakeDrafter(HashModel(agreement=agreement))


async def test_a_target_dies_in_mid_stream_and_exact_output_does_not_change(model: Path) -> None:
    (first, drafter), second = pair(), FakeTarget(HashModel(certain_share=0.3))
    async with running(model, [first, second], [drafter], balancing="round_robin") as rig:
        expected = ids(await rig.generate(PLAIN))
        first.num_steps = 0
        dies_at(first, 4)
        responses = [await rig.generate(EXACT), await rig.generate(EXACT)]
    assert [ids(response) for response in responses] == [expected, expected]
    assert sorted(response.statistics.replays for response in responses) == [0, 1]


async def test_a_stream_is_never_continued_with_other_weights(model: Path) -> None:
    first, second = FakeTarget(HashModel()), FakeTarget(HashModel(agreement=0.5), weight_fingerprint="w2")
    async with running(model, [first, second], replica_wait_s=0.2) as rig:
        for target in (first, second):
            dies_at(target, 4)
        error = await rig.error_of(make_request(PLAIN))
    assert error.code() == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("others", [("k2",), ("k2", "k2", "k1")])
async def test_a_stream_continues_at_equal_kernels_or_says_that_it_did_not(
    model: Path, others: tuple[str, ...]
) -> None:
    targets = [FakeTarget(HashModel(), kernels=kernels) for kernels in ("k1", *others)]
    async with running(model, targets, balancing="round_robin") as rig:
        dies_at(targets[0], 4)
        responses = [await rig.generate(PLAIN) for _ in targets]
    (moved,) = (response for response in responses if response.statistics.replays)
    assert any("other kernels" in warning for warning in moved.warnings) == ("k1" not in others)
    assert not any(
        "other kernels" in text for each in responses if each is not moved for text in each.warnings
    )


async def test_the_only_target_dies_and_comes_back_at_its_address(model: Path) -> None:
    target = FakeTarget(HashModel())
    async with running(model, [target]) as rig:
        expected = ids(await rig.generate(PLAIN))
        target.num_steps = 0
        dies_at(target, 5)
        call = asyncio.create_task(rig.generate(PLAIN))
        while target.num_steps < 5:
            target.stepped.clear()
            await target.stepped.wait()
        await target.dead()
        again = FakeTarget(HashModel(), address=target.host.address)
        await again.host.start()
        try:
            response = await asyncio.wait_for(call, PATIENCE_S)
        finally:
            await again.host.drain(0.0)
    assert ids(response) == expected and response.statistics.replays == 1


async def test_a_deployment_without_drafters_misses_none(model: Path) -> None:
    async with running(model, [FakeTarget(HashModel())], has_drafter=False) as rig:
        response = await rig.generate(EXACT)
        assert ids(response) == ids(await rig.generate(PLAIN)) and not response.warnings
    async with running(model, [FakeTarget(HashModel())]) as rig:
        assert "had no draft" in (await rig.generate(EXACT)).warnings[0]


async def test_a_drafter_dies_and_the_response_goes_on_without(model: Path) -> None:
    target, drafter = pair()
    async with running(model, [target], [drafter]) as rig:
        expected = ids(await rig.generate(PLAIN))
        dies_at(drafter, 3)
        response = await rig.generate(EXACT)
        assert ids(response) == expected and "had no draft" in response.warnings[0]
        assert ids(await rig.generate(EXACT)) == expected


@pytest.mark.parametrize("tier", ["target", "drafter"])
async def test_a_stale_server_is_told_the_sequence_anew(model: Path, tier: str) -> None:
    target, drafter = pair()
    async with running(model, [target], [drafter]) as rig:
        expected = ids(await rig.generate(PLAIN))
        stale = target if tier == "target" else drafter
        stale.num_steps = 0
        answers_at(stale, {3, 5}, Stale(0, StaleReason.WRONG_HASH))
        response = await rig.generate(EXACT)
    assert ids(response) == expected and response.statistics.replays == 2 and not response.warnings


RUBBISH = {
    "too few positions": Verification(0, (), ()),
    "unequal lengths": Verification(0, (5,) * 16, (0.0,) * 3),
    "unknown tokens": Verification(0, (VOCAB_SIZE,) * 16, (0.0,) * 16),
    "unknown drafts": Verification(0, (5,) * 16, (0.0,) * 16, frozenset({77})),
}


@pytest.mark.parametrize("rubbish", RUBBISH.values(), ids=RUBBISH.keys())
async def test_a_target_that_answers_rubbish_is_left(model: Path, rubbish: Verification) -> None:
    (broken, drafter), sound = pair(1.0), FakeTarget(HashModel(certain_share=0.3))
    answers_at(broken, set(range(2, 1000)), rubbish)
    async with running(model, [broken, sound], [drafter], balancing="round_robin") as rig:
        responses = [await rig.generate(EXACT) for _ in range(2)]
        expected = ids(await rig.generate(PLAIN))
    assert all(ids(response) == expected for response in responses)


async def test_a_target_whose_answer_cannot_be_read_is_left(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read, number = streams.verify_response_from_wire, itertools.count(1)

    def uneven(wire: target_pb2.VerifyResponse) -> Any:
        if next(number) == 3:
            raise ValueError("zip() argument 2 is longer than argument 1")
        return read(wire)

    async with running(model, [FakeTarget(HashModel()), FakeTarget(HashModel())]) as rig:
        expected = ids(await rig.generate(PLAIN))
        monkeypatch.setattr(streams, "verify_response_from_wire", uneven)
        response = await rig.generate(PLAIN)
    assert ids(response) == expected and response.statistics.replays == 1
    assert "answer cannot be read: zip()" in caplog.text


async def test_a_target_cannot_claim_more_of_the_cache_than_the_prompt_has(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_streams, "times_from_wire", lambda wire: StepTimes(reused_tokens=10_000))
    async with running(model, [FakeTarget(HashModel())]) as rig:
        assert (await rig.generate(PLAIN)).statistics.cached_tokens == len(PROMPT)


RUBBISH_DRAFTS = {
    "unknown": Draft(0, (VOCAB_SIZE, 3)),
    "too long": Draft(0, tuple(range(2, 102))),
    "counts of -1": Draft(0, (2, 3), forwards=2**32 - 1),
    "counts of the sub-drafter": Draft(0, (2, 3), proposals=ProposalCounts(late=2**32 - 1)),
}


@pytest.mark.parametrize("draft", RUBBISH_DRAFTS.values(), ids=RUBBISH_DRAFTS.keys())
async def test_a_drafter_that_proposes_rubbish_is_left(model: Path, draft: Draft) -> None:
    target, drafter = pair()
    answers_at(drafter, {2}, draft)
    async with running(model, [target], [drafter]) as rig:
        response = await rig.generate(EXACT)
        assert ids(response) == ids(await rig.generate(PLAIN)) and response.warnings


async def test_hanging_servers_are_left(model: Path) -> None:
    (first, drafter), second = pair(), FakeTarget(HashModel(certain_share=0.3))
    limit_s = 5.0  # the sum of these jumps in time stays far below the deadline of the request

    async def lose_patience(hanging: asyncio.Event) -> None:
        while await hanging.wait():
            hanging.clear()
            pass_time(limit_s)

    waits = [asyncio.create_task(lose_patience(hangs(each))) for each in (first, drafter)]
    limits = {"verify_timeout_s": limit_s, "draft_timeout_s": limit_s}
    async with running(model, [first, second], [drafter], **limits) as rig:
        assert len((await rig.generate(EXACT)).tokens) == 60
    for wait in waits:
        wait.cancel()


@pytest.mark.parametrize("tier", ["target", "drafter"])
@pytest.mark.parametrize("streams", [True, False])
async def test_a_client_that_cancels_frees_both_streams(model: Path, tier: str, streams: bool) -> None:
    target, drafter = pair()
    hanging = hangs(target if tier == "target" else drafter)
    async with running(model, [target], [drafter]) as rig:
        call = (rig.stub.GenerateStream if streams else rig.stub.Generate)(make_request(EXACT))
        async with asyncio.timeout(PATIENCE_S):
            await hanging.wait()
            await drafter.stepped.wait()
        assert (target.num_open, drafter.num_open) == (1, 1)
        call.cancel()
        await closed(target, drafter)


async def test_a_deadline_reaches_the_services_and_ends_the_work(model: Path) -> None:
    target, drafter = pair()
    hangs(target)
    async with running(model, [target], [drafter]) as rig:
        timeout_s = await rig.expired(make_request(EXACT), target)
        assert 0 < target.openings[-1].deadline_ms <= 1000 * timeout_s


async def test_streams_are_closed_at_the_end_of_every_response(model: Path) -> None:
    target, drafter = pair()
    async with running(model, [target], [drafter]) as rig:
        await asyncio.gather(*(rig.generate(FLY) for _ in range(8)))
        assert (target.num_opened, target.num_open, drafter.num_open) == (8, 0, 0)
