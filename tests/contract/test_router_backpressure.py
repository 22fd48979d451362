"""Full targets, failing requests and deadlines: what they cost, and that no replica is taken out of use."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from flyserve.core.errors import Overloaded
from flyserve.core.messages import Open, Opened, Verification, VerifyStep
from flyserve.core.sequence import ReplicatedSequence
from flyserve.v1 import generation_pb2 as pb
from flyserve.wire.streams import draft_response_to_wire, verify_response_to_wire
from router.generation.replica_session import ReplicaSession
from router.generation.step_timeout import StepTimeout
from services.common.shared_stream.server import Send
from tests.contract.fakes import FakeDrafter, FakeTarget, HashModel, held
from tests.contract.router_rig import PLAIN, Rig, assert_kept, ids, make_request, running
from tests.support.clock import pass_time

LIMIT_S = 240
STEP_S = 30.0
"""A limit of steps, which no step reaches but one that hangs while the test lets time pass."""
POISON = 77
STATUS = grpc.StatusCode


class CountingTarget(FakeTarget):
    """A target that counts its sequences; it refuses those beyond `most`, if there is such a number."""

    def __init__(self, most: int | None = None, **info: Any) -> None:
        super().__init__(HashModel(), **info)
        self.peak = self.num_refused = 0
        self.most = most

    @asynccontextmanager
    async def session(self, opening: Open) -> AsyncIterator[Any]:
        if self.most is not None and self.num_open >= self.most:
            self.num_refused += 1
            raise Overloaded(f"{self.num_open} sequences are open", 0.05)
        async with super().session(opening) as session:
            self.peak = max(self.peak, self.num_open)
            yield session


class FailingTarget(FakeTarget):
    """A target that raises an error for one prompt."""

    def __init__(self, error: Exception) -> None:
        super().__init__(HashModel())
        self.num_raised = 0
        self._error = error

    def answer(self, known: ReplicatedSequence, opening: Open, step: VerifyStep) -> Verification:
        if POISON in known.tokens.ids[:4]:
            self.num_raised += 1
            raise self._error
        return super().answer(known, opening, step)


async def outcomes(rig: Rig, *requests: pb.GenerateRequest, timeout_s: float = LIMIT_S) -> Counter[STATUS]:
    """Send all requests at once; return the number of each status."""

    async def outcome(request: pb.GenerateRequest) -> STATUS:
        try:
            await rig.stub.Generate(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return STATUS.OK

    return Counter(await asyncio.gather(*map(outcome, requests)))


def prompt(*tokens: int) -> pb.TokenIds:
    return pb.TokenIds(ids=tokens)


async def test_a_wait_for_a_place_is_not_a_fault(
    model: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_paused, pause = 0, StepTimeout.pause

    def counted(timeout: StepTimeout) -> None:
        nonlocal num_paused
        num_paused += 1
        pause(timeout)

    monkeypatch.setattr(StepTimeout, "pause", counted)
    target = FakeTarget(HashModel())
    target.places = asyncio.Semaphore(2)
    async with running(model, [target], verify_timeout_s=STEP_S) as rig:
        for _ in range(2):
            await target.places.acquire()
        calls = []
        for number in range(8):
            calls.append(asyncio.create_task(rig.generate(PLAIN, request_id=str(number))))
            while num_paused <= number:
                await asyncio.sleep(0.01)
        pass_time(STEP_S + 1)
        await asyncio.sleep(0.1)
        for _ in range(2):
            target.places.release()
        responses = await asyncio.gather(*calls)
    assert len({tuple(ids(response)) for response in responses}) == 1
    assert [opening.request_id for opening in target.openings] == [str(number) for number in range(8)]
    assert not any(response.statistics.replays for response in responses)
    assert_kept(caplog)


class PrefillingTarget(FakeTarget):
    """A target that reports the forwards of its prompt when the test says so."""

    async def serve(self, requests: AsyncIterator[Any], send: Send) -> None:
        self.report = partial(send, verify_response_to_wire(Opened()))
        await super().serve(requests, send)


class PrefillingDrafter(FakeDrafter):
    """A drafter that does so."""

    async def serve(self, requests: AsyncIterator[Any], send: Send) -> None:
        self.report = partial(send, draft_response_to_wire(Opened()))
        await super().serve(requests, send)


@pytest.mark.parametrize("mode", [PLAIN, pb.MODE_DRAFT])
@pytest.mark.parametrize("reports", [True, False])
async def test_a_prompt_of_many_forwards_is_not_a_fault(
    model: Path, monkeypatch: pytest.MonkeyPatch, mode: int, reports: bool
) -> None:
    target, drafter = PrefillingTarget(HashModel()), PrefillingDrafter(HashModel(), standalone_sequences=4)
    asked: PrefillingTarget | PrefillingDrafter = target if mode == PLAIN else drafter
    gate, heard, changed = held(asked), asyncio.Semaphore(0), ReplicaSession._place_changed

    def record(session: ReplicaSession[Any], message: Any) -> None:
        changed(session, message)
        heard.release()

    monkeypatch.setattr(ReplicaSession, "_place_changed", record)
    async with running(model, [target], [drafter], verify_timeout_s=STEP_S) as rig, asyncio.timeout(LIMIT_S):
        call = asyncio.create_task(rig.generate(mode))
        await asked.stepped.wait()
        asked.stepped.clear()
        for _ in range(4):
            if reports:
                await asked.report()
                await heard.acquire()
            pass_time(STEP_S * 0.7)
        if not reports:
            await asked.stepped.wait()
        gate.set()
        assert (await call).statistics.replays == (0 if reports else 1)


async def test_a_refused_sequence_waits_in_the_router(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = CountingTarget(most=2)
    async with running(model, [target]) as rig, asyncio.timeout(LIMIT_S):
        responses = await asyncio.gather(*(rig.generate(PLAIN) for _ in range(8)))
    assert target.num_refused > 0 and target.peak == 2
    assert not any(response.statistics.replays for response in responses), "a refused sequence was not lost"
    assert_kept(caplog)


async def test_admission_follows_the_places_of_the_targets(model: Path) -> None:
    target, is_full = CountingTarget(most=64, max_sequences=64), asyncio.Event()

    async def script(number: int) -> None:
        if target.num_open == 64:
            is_full.set()
        await is_full.wait()

    target.script = script
    async with running(model, [target]) as rig:
        assert await outcomes(rig, *(make_request(PLAIN, 6) for _ in range(250))) == {STATUS.OK: 250}
    assert (target.num_refused, target.peak) == (0, 64)


async def test_more_choices_than_places_are_all_generated(model: Path) -> None:
    target = CountingTarget(most=4, max_sequences=4)
    async with running(model, [target]) as rig, asyncio.timeout(LIMIT_S):
        others = outcomes(rig, *(make_request(PLAIN, 10) for _ in range(6)))
        (choices, _), found = await asyncio.gather(rig.choices(PLAIN, 10, n=9), others)
    assert [len(choice.tokens) for choice in choices] == [10] * 9 and found == {STATUS.OK: 6}
    assert (target.num_refused, target.peak) == (0, 4)


async def test_a_poisoned_request_tries_one_other_target(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    targets = [FailingTarget(RuntimeError("CUDA out of memory")) for _ in range(4)]
    async with running(model, targets) as rig:
        innocent = [make_request(PLAIN, 40, prompt_token_ids=prompt(40, 41, n)) for n in range(2, 34)]
        poisoned = make_request(PLAIN, 40, prompt_token_ids=prompt(40, POISON, 42))
        assert await outcomes(rig, *innocent, poisoned) == {STATUS.OK: 32, STATUS.INTERNAL: 1}
    assert sum(target.num_raised for target in targets) == 2
    assert sum(target.num_opened for target in targets) == 32 + 2, "no other stream was disturbed"
    assert_kept(caplog)


async def test_deadlines_eject_nothing(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    targets = [FakeTarget(HashModel()) for _ in range(2)]
    for target in targets:
        held(target)
    async with running(model, targets, max_concurrent=2_000) as rig:
        for _ in range(5):
            found = await outcomes(rig, *(make_request(PLAIN) for _ in range(200)), timeout_s=0.25)
            # NOTE: where the server notices the deadline first, gRPC ends the call as cancelled.
            assert found.total() == found[STATUS.DEADLINE_EXCEEDED] + found[STATUS.CANCELLED] == 200
    assert_kept(caplog)


async def test_a_slow_step_continues_at_another_target_and_both_are_kept(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slow, other, hanging = FakeTarget(HashModel()), FakeTarget(HashModel()), asyncio.Event()

    async def hangs_once(number: int) -> None:
        if number == 3 and not hanging.is_set():
            hanging.set()
            await asyncio.Event().wait()

    slow.script = hangs_once
    async with running(model, [slow, other], verify_timeout_s=STEP_S, balancing="round_robin") as rig:
        calls = [asyncio.create_task(rig.generate(PLAIN)) for _ in range(2)]
        await hanging.wait()
        answered = [await rig.generate(PLAIN) for _ in range(2)]
        pass_time(STEP_S + 1)
        responses = [*answered, *await asyncio.gather(*calls)]
        assert len({tuple(ids(response)) for response in responses}) == 1
        assert sum(response.statistics.replays for response in responses) == 1
        num_opened = slow.num_opened
        for _ in range(2):
            await rig.generate(PLAIN)
        assert slow.num_opened > num_opened
    assert_kept(caplog)


class Stuck(asyncio.Semaphore):
    """Places of an engine that hangs: the end of a sequence frees none."""

    def release(self) -> None:
        return


async def test_a_target_that_answers_no_step_is_left_by_all_until_it_does(model: Path) -> None:
    stuck, other, hanging = FakeTarget(HashModel()), FakeTarget(HashModel()), asyncio.Event()

    async def hangs(number: int) -> None:
        hanging.set()
        await asyncio.Event().wait()

    stuck.places, stuck.script = Stuck(1), hangs
    async with (
        running(model, [stuck, other], verify_timeout_s=STEP_S, balancing="round_robin") as rig,
        asyncio.timeout(LIMIT_S),
    ):
        calls = [asyncio.create_task(rig.generate(PLAIN)) for _ in range(4)]
        await hanging.wait()
        while not stuck.num_queued or sum(call.done() for call in calls) < 2:
            await asyncio.sleep(0.01)
        pass_time(STEP_S + 1)
        responses = await asyncio.gather(*calls)
        assert len({tuple(ids(response)) for response in responses}) == 1
        stuck.places, stuck.script = None, other.script
        num_opened = stuck.num_opened
        while stuck.num_opened == num_opened:
            await rig.generate(PLAIN)


async def test_every_choice_takes_a_place(model: Path) -> None:
    n = 3
    target = CountingTarget(most=4, max_sequences=4)
    async with running(model, [target]) as rig:
        requests = [make_request(PLAIN, 10, n=n) for _ in range(5)]
        assert await outcomes(rig, *requests) == {STATUS.OK: 5}
    assert target.num_refused == 0 and n <= target.peak <= 4
