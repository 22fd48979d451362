"""Slow, blocked and full drafters: responses lose drafts, never tokens or time."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flyserve.v1 import common_pb2
from tests.contract.fakes import FakeDrafter, FakeTarget, HashModel, closed, held
from tests.contract.router_rig import EXACT, PLAIN, Rig, assert_kept, ids, make_request, running
from tests.contract.scripted import LoggingDrafter, LoggingTarget, ScriptedModel
from tests.support.clock import pass_time

LIMIT_S = 240
STEP_S = 30.0
"""A limit of drafts, which none reaches but one that hangs while the test lets time pass."""
NO_WAIT = {"draft_patience": 0.0}
"""Every draft is late: it arrives while the target decodes without it, if at all."""


async def several(rig: Rig, count: int) -> list[Any]:
    async with asyncio.timeout(LIMIT_S):
        return await asyncio.gather(*(rig.generate(EXACT) for _ in range(count)))


async def test_responses_end_though_the_drafter_answers_nothing(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target, drafter = FakeTarget(HashModel()), FakeDrafter(HashModel())
    gate = held(drafter)
    async with running(model, [target], [drafter], draft_patience=1.0) as rig:
        expected = ids(await rig.generate(PLAIN))
        responses = await several(rig, 8)
        assert not gate.is_set() and all(ids(response) == expected for response in responses)
        assert all("late draft" in response.warnings[0] for response in responses)
        await closed(drafter)
        gate.set()
        assert (await rig.generate(EXACT)).tokens
        assert_kept(caplog)


async def test_a_drafter_that_answers_no_draft_is_left_by_all_until_it_does(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target, drafter = FakeTarget(HashModel()), FakeDrafter(HashModel())
    gate = held(drafter, 3)
    limits = {"draft_timeout_s": STEP_S, "probe_interval_s": 600}
    async with asyncio.timeout(LIMIT_S), running(model, [target], [drafter], **limits) as rig:
        calls = [asyncio.create_task(rig.generate(EXACT)) for _ in range(2)]
        while drafter.num_steps < 4:
            drafter.stepped.clear()
            await drafter.stepped.wait()
        pass_time(STEP_S + 1)
        await drafter.all_closed.wait()
        gate.set()
        responses, num_opened = await asyncio.gather(*calls), drafter.num_opened
        while drafter.num_opened == num_opened:
            responses.append(await rig.generate(EXACT))
    assert len({tuple(ids(response)) for response in responses}) == 1
    lost = [r for r in caplog.records if r.name.endswith("directory") and r.getMessage().endswith("failed")]
    assert len(lost) == 1


async def test_a_long_prompt_takes_its_drafter_from_no_other_response(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target, drafter = FakeTarget(HashModel()), FakeDrafter(HashModel())

    async def script(number: int) -> None:
        if number == 1:
            await asyncio.Event().wait()

    drafter.script = script
    limits = {"draft_timeout_s": STEP_S, "probe_interval_s": 600}
    async with asyncio.timeout(LIMIT_S), running(model, [target], [drafter], **limits) as rig:
        call = asyncio.create_task(rig.generate(EXACT))
        await drafter.stepped.wait()
        pass_time(STEP_S + 1)
        await drafter.all_closed.wait()
        await call
        assert (await rig.generate(EXACT)).statistics.drafted
    assert_kept(caplog)


async def test_the_first_token_does_not_wait_for_the_drafter(model: Path) -> None:
    target, drafter = FakeTarget(HashModel()), FakeDrafter(HashModel())
    gate = held(drafter)
    async with running(model, [target], [drafter]) as rig:
        expected = ids(await rig.generate(PLAIN))
        call = aiter(rig.stub.GenerateStream(make_request(EXACT)))
        async with asyncio.timeout(LIMIT_S):
            first = await anext(call)
            assert ids(first) == expected[:1] and not gate.is_set()
            gate.set()
            rest = [chunk async for chunk in call]
    assert [token.id for chunk in (first, *rest) for token in chunk.tokens] == expected
    statistics = rest[-1].statistics
    assert statistics.drafted > 0 and 0 < statistics.time_to_first_token_s < statistics.total_s


async def test_a_late_draft_is_used_if_it_fits(model: Path) -> None:
    target, drafter = FakeTarget(HashModel()), FakeDrafter(HashModel())
    gate = held(drafter)
    async with running(model, [target], [drafter], **NO_WAIT) as rig:
        expected = ids(await rig.generate(PLAIN))

        async def script(number: int) -> None:
            if number == 4:
                gate.set()

        target.num_steps, target.script = 0, script
        response = await rig.generate(EXACT)
    statistics = response.statistics
    assert ids(response) == expected
    assert statistics.accepted == statistics.drafted > 0, "what still fits is what the target chose"
    assert not any(played.drafted for played in response.rounds[:3])


async def test_a_late_draft_that_does_not_fit_is_dropped(model: Path) -> None:
    target, drafter = FakeTarget(HashModel()), FakeDrafter(HashModel(agreement=0.0))
    async with running(model, [target], [drafter], **NO_WAIT) as rig:
        expected = ids(await rig.generate(PLAIN))
        response = await rig.generate(EXACT)
    assert ids(response) == expected
    assert response.statistics.drafter_forwards > 0 == response.statistics.drafted


@pytest.mark.parametrize("agreement", [0.3, 0.7, 0.9])
@pytest.mark.parametrize("patience", [0.0, 1.0])
async def test_late_drafts_do_not_change_exact_output(model: Path, agreement: float, patience: float) -> None:
    target, drafter = FakeTarget(HashModel()), FakeDrafter(HashModel(agreement=agreement))
    async with running(model, [target], [drafter], draft_patience=patience) as rig:
        expected = ids(await rig.generate(PLAIN, 200))
        responses = await asyncio.gather(*(rig.generate(EXACT, 200) for _ in range(4)))
    assert [ids(response) for response in responses] == [expected] * 4
    for response in responses:
        statistics = response.statistics
        assert statistics.drafted_ahead <= statistics.drafted
        assert statistics.draft_s + statistics.verify_s + statistics.wire_s <= statistics.total_s


async def test_a_late_draft_keeps_the_distributions_of_its_tokens(model: Path) -> None:
    target, drafter = LoggingTarget(ScriptedModel()), LoggingDrafter(ScriptedModel())
    rejection = common_pb2.SamplingParams(temperature=1.0, coupling=common_pb2.COUPLING_REJECTION, seed=1)
    async with running(model, [target], [drafter], **NO_WAIT) as rig:
        await rig.generate(EXACT, 100, sampling=rejection)
    assert any(step.num_drafts for step in target.verified)
    for step in target.verified:
        drafts = step.update.tokens[len(step.update.tokens) - step.num_drafts :]
        assert tuple(each.ids[0] for each in step.distributions) == drafts
