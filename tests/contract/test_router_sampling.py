"""Sampling, choices and log-probabilities through a router: requests to the services and their results."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from flyserve.core.messages import Draft
from flyserve.core.types import PositionLogprobs, SparseDistribution
from flyserve.v1 import common_pb2
from flyserve.v1 import generation_pb2 as pb
from router.requests.request import choice_seed
from router.text.tokenizer import Tokenizer
from tests.contract.fakes import dies_at, save_tokenizer
from tests.contract.router_rig import EXACT, FLY, PLAIN, Rig, ids, make_request, running
from tests.contract.scripted import (
    LoggingDrafter,
    LoggingTarget,
    ScriptedModel,
    SeededModel,
    drawn_from,
    logprob,
)

SAMPLING = common_pb2.SamplingParams
HOT = {"temperature": 0.8, "seed": 7}


class Stage:
    def __init__(self, rig: Rig, target: LoggingTarget, drafter: LoggingDrafter) -> None:
        self.rig = rig
        self.target = target
        self.drafter = drafter


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    target, drafter = LoggingTarget(SeededModel()), LoggingDrafter(SeededModel(agreement=0.8))
    folder = save_tokenizer(tmp_path)
    async with running(folder, [target], [drafter], max_concurrent=2, replica_wait_s=0.2) as rig:
        yield Stage(rig, target, drafter)


async def test_sampling_with_one_seed_is_the_same_in_every_mode(stage: Stage) -> None:
    plain, exact = [await stage.rig.generate(mode, 40, sampling=SAMPLING(**HOT)) for mode in (PLAIN, EXACT)]
    assert ids(exact) == ids(plain) != ids(await stage.rig.generate(PLAIN, 40))
    other = await stage.rig.generate(PLAIN, 40, sampling=SAMPLING(temperature=0.8))
    again = await stage.rig.generate(
        PLAIN, 40, sampling=SAMPLING(temperature=0.8, seed=other.statistics.seed)
    )
    assert ids(again) == ids(other), "the drawn seed is returned and gives the same tokens again"


async def test_what_drafts_were_drawn_from_is_verified_with_them(stage: Stage) -> None:
    sampling = SAMPLING(**HOT, coupling=common_pb2.COUPLING_REJECTION)
    await stage.rig.generate(EXACT, 30, sampling=sampling)
    drafts = [step for step in stage.target.verified if step.num_drafts]
    assert drafts
    for step in drafts:
        assert step.distributions == tuple(map(drawn_from, step.update.tokens[-step.num_drafts :]))


@pytest.mark.parametrize(
    "sampling", [SAMPLING(**HOT), SAMPLING(coupling=common_pb2.COUPLING_REJECTION)], ids=["shared", "greedy"]
)
async def test_distributions_stay_where_nobody_needs_them(stage: Stage, sampling: Any) -> None:
    response = await stage.rig.generate(EXACT, 20, sampling=sampling)
    assert stage.target.verified and not any(step.distributions for step in stage.target.verified)
    greedy = sampling.temperature == 0
    assert list(response.warnings) == ["sampling.coupling has no effect at temperature 0"] * greedy


async def test_a_drafter_whose_distributions_make_no_sense_is_left(stage: Stage) -> None:
    rubbish = (SparseDistribution((9,), (0.5,)), SparseDistribution((7,), (1.0,)))

    async def script(step: int) -> Any:
        return Draft(0, (9, 7), distributions=rubbish) if step == 1 else None

    stage.drafter.script = script
    sampling = SAMPLING(**HOT, coupling=common_pb2.COUPLING_REJECTION)
    response = await stage.rig.generate(EXACT, 20, sampling=sampling)
    assert len(response.tokens) == 20 and "had no draft" in response.warnings[0]


async def test_each_choice_has_a_seed_of_its_own(stage: Stage) -> None:
    choices, response = await stage.rig.choices(EXACT, 30, n=3, sampling=SAMPLING(**HOT))
    assert [choice.index for choice in choices] == [0, 1, 2]
    assert [choice.statistics.seed for choice in choices] == [choice_seed(7, index) for index in range(3)]
    assert len({tuple(ids(choice)) for choice in choices}) == 3
    for choice in choices:
        alone = SAMPLING(temperature=0.8, seed=choice.statistics.seed)
        assert ids(choice) == ids(await stage.rig.generate(EXACT, 30, sampling=alone))
    names = {opening.request_id for opening in stage.target.openings[:3]}
    assert names == {response.request_id, f"{response.request_id}#1", f"{response.request_id}#2"}


async def test_choices_run_side_by_side_and_take_a_slot_each(stage: Stage) -> None:
    most, all_open = 0, asyncio.Event()

    async def script(step: int) -> None:
        nonlocal most
        most = max(most, stage.target.num_open)
        if stage.target.num_open == 2:
            all_open.set()
        await asyncio.wait_for(all_open.wait(), 240)

    stage.target.script = script
    choices, _ = await stage.rig.choices(PLAIN, 5, n=4, sampling=SAMPLING(**HOT))
    assert len(choices) == 4 and most == 2, "the router has two slots"


async def test_a_choice_that_fails_ends_the_request_and_its_other_choices(stage: Stage) -> None:
    dies_at(stage.target, 6)
    error = await stage.rig.error_of(make_request(PLAIN, 400, n=3, sampling=SAMPLING(**HOT)))
    assert error.code() == grpc.StatusCode.UNAVAILABLE
    async with asyncio.timeout(240.0):
        await stage.drafter.all_closed.wait() if stage.drafter.num_open else None


async def test_log_probabilities_belong_to_their_tokens(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path)
    target, tokenizer = LoggingTarget(ScriptedModel()), Tokenizer.load(folder)
    drafter = LoggingDrafter(ScriptedModel(deviates=frozenset({3, 12, 15})))
    async with running(folder, [target], [drafter]) as rig:
        carry = {"window": 6, "tail": pb.TAIL_POLICY_CARRY, "draft_length": {"max": 6}}
        response = await rig.generate(FLY, 40, speculation=carry, logprobs=2)
        silent = await rig.generate(FLY, 40, speculation=carry)
    assert {token.verdict for token in response.tokens} >= {pb.VERDICT_RESCUED, pb.VERDICT_BONUS}
    for token in response.tokens:
        reported = token.logprobs
        assert (reported.token, reported.choice) == pytest.approx((logprob(token.id), logprob(token.choice)))
        assert [ranked.id for ranked in reported.top] == [token.choice, token.choice + 1]
        assert reported.top[0].text == tokenizer.pieces((token.choice,))[0]
        assert token.choice_text == (reported.top[0].text if token.id != token.choice else "")
    assert ids(silent) == ids(response) and not any(t.HasField("logprobs") for t in silent.tokens)


async def test_a_target_that_tells_no_log_probabilities_is_left(tmp_path: Path) -> None:
    target = LoggingTarget(ScriptedModel())
    sound = target.answer

    def answer(*arguments: Any) -> Any:
        return sound(*arguments)._replace(logprobs=())

    target.answer = answer  # type: ignore[method-assign]
    async with running(save_tokenizer(tmp_path), [target], replica_wait_s=0.2) as rig:
        error = await rig.rejection(prompt="hello", logprobs=0, max_new_tokens=3)
    assert error.code() == grpc.StatusCode.UNAVAILABLE


async def test_log_probabilities_that_nobody_asked_for_are_not_passed_on(tmp_path: Path) -> None:
    target = LoggingTarget(ScriptedModel())
    sound = target.answer

    def answer(*arguments: Any) -> Any:
        found = sound(*arguments)
        return found._replace(logprobs=tuple(PositionLogprobs(-1.0, -1.0, ()) for _ in found.choices))

    target.answer = answer  # type: ignore[method-assign]
    async with running(save_tokenizer(tmp_path), [target]) as rig:
        response = await rig.generate(PLAIN, 3)
    assert len(response.tokens) == 3 and not any(token.HasField("logprobs") for token in response.tokens)


@pytest.mark.parametrize("stop", [(), ("fox",), ("brown fox", "zy d")])
async def test_the_texts_of_the_tokens_make_the_text(stage: Stage, stop: tuple[str, ...]) -> None:
    response = await stage.rig.generate(EXACT, 120, stop=list(stop))
    joined = "".join(token.text for token in response.tokens)
    assert joined.startswith(response.text) or response.text.startswith(joined)
    if response.finish_reason == pb.FINISH_REASON_LENGTH:
        assert response.text.rstrip("\ufffd") == joined.rstrip("\ufffd")


async def test_leaving_a_stream_of_choices_ends_those_that_wait_too(stage: Stage) -> None:
    call = stage.rig.stub.GenerateStream(make_request(EXACT, 400, n=4, sampling=SAMPLING(**HOT)))
    await call.read()
    async with asyncio.timeout(240.0):
        await stage.drafter.stepped.wait()
        call.cancel()
        await stage.target.all_closed.wait()
        await stage.drafter.all_closed.wait()
