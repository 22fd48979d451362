"""Scored prompts over gRPC: lost targets, deadlines, disconnected clients, wrong answers, resumed streams."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest

from flyserve.core.errors import InternalError, Overloaded
from flyserve.core.messages import Extend, Open, Verification
from flyserve.core.sequence import ReplicatedSequence
from flyserve.v1 import generation_pb2 as pb
from router.security import peers
from tests.contract.fakes import HashModel, closed, save_tokenizer
from tests.contract.router_rig import EXACT, PLAIN, Rig, ids, joined, make_request, running
from tests.contract.scripted import LoggingTarget, logprob

LONG = [2 + (7 * at + at // 13) % 300 for at in range(700)]
MODEL = HashModel(context_length=1024)


class Targets:
    """Two targets, a router in front of them."""

    def __init__(self, rig: Rig, targets: list[LoggingTarget]) -> None:
        self.rig = rig
        self.targets = targets

    async def scored(self, **fields: Any) -> pb.GenerateResponse:
        fields = {"prompt_logprobs": 1, "max_new_tokens": 3, **fields}
        fields.setdefault("prompt_token_ids", pb.TokenIds(ids=LONG))
        request = make_request(PLAIN, **fields)
        return await self.rig.stub.Generate(request, timeout=240)


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[Targets]:
    targets = [LoggingTarget(MODEL) for _ in range(2)]
    async with running(save_tokenizer(tmp_path), targets, balancing="round_robin") as rig:
        yield Targets(rig, targets)


def check(response: pb.GenerateResponse) -> None:
    first, *rest = response.prompt
    assert not first.HasField("logprob") and not first.top
    assert [token.logprob for token in rest] == pytest.approx([logprob(token) for token in LONG[1:]])
    assert [token.id for token in response.prompt] == LONG and all(len(token.top) == 1 for token in rest)


async def test_a_prompt_is_scored_once_for_all_choices(system: Targets) -> None:
    check(response := await system.scored(n=3))
    assert [len(choice.tokens) for choice in response.choices] == [3, 3, 3]
    assert sum(target.num_opened for target in system.targets) == 4
    drafts = [step.num_drafts for target in system.targets for step in target.verified if step.num_drafts]
    assert drafts == [255, 255, 189]
    plain = await system.rig.generate(PLAIN, 3, prompt_token_ids=pb.TokenIds(ids=LONG))
    assert ids(response.choices[0]) == ids(plain) and not response.choices[0].statistics.cached_tokens


@pytest.mark.parametrize("lost_at", [1, 2, 3])
async def test_a_lost_target_costs_a_replay_and_no_value(system: Targets, lost_at: int) -> None:
    lost = list[LoggingTarget]()
    for target in system.targets:

        async def script(step: int, target: LoggingTarget = target) -> None:
            is_first = all(not other.num_steps for other in system.targets if other is not target)
            if step == lost_at and is_first:
                lost.append(target)
                await target.die()

        target.script = script
    check(await system.scored())
    assert len(lost) == 1


async def test_a_target_that_leaves_values_out_is_left(system: Targets) -> None:
    for target, is_wrong in zip(system.targets, (True, False), strict=True):
        sound = target.answer

        def answer(
            known: ReplicatedSequence, opening: Open, step: Any, sound: Any = sound, is_wrong: bool = is_wrong
        ) -> Verification:
            answered: Verification = sound(known, opening, step)
            if not is_wrong:
                return answered
            return replace(answered, logprobs=tuple(replace(each, draft=None) for each in answered.logprobs))

        target.answer = answer  # type: ignore[method-assign]
    for _ in range(4):
        check(await system.scored(max_new_tokens=0))


async def test_a_token_after_which_the_model_fails_is_scored_by_the_other_target(system: Targets) -> None:
    first, _ = system.targets
    sound, failed = first.answer, asyncio.Event()

    def answer(known: ReplicatedSequence, opening: Open, step: Any) -> Verification:
        drafts = 0 if isinstance(step, Extend) else step.num_drafts
        before = len(known) - drafts
        if drafts and before == 300:
            failed.set()
            raise InternalError("the model's logits are not finite")
        scored: Verification = sound(known, opening, step)
        if not drafts or not before < 300 <= len(known):
            return scored
        num_rows = 300 - before
        return scored._replace(
            choices=scored.choices[:num_rows],
            entropies=scored.entropies[:num_rows],
            logprobs=scored.logprobs[:num_rows],
        )

    first.answer = answer  # type: ignore[method-assign]
    for _ in range(2):
        check(await system.scored(max_new_tokens=0))
    assert failed.is_set()


async def test_a_client_that_leaves_ends_the_scoring(system: Targets) -> None:
    reached = asyncio.Event()
    for target in system.targets:

        async def script(step: int) -> None:
            if step == 2:
                reached.set()
                await asyncio.Event().wait()

        target.script = script
    call = asyncio.create_task(system.scored())
    await asyncio.wait_for(reached.wait(), 240)
    call.cancel()
    for target in system.targets:
        if target.num_opened:
            await closed(target)


async def test_a_stream_has_the_prompt_in_its_first_chunk_and_a_resumed_one_has_none(system: Targets) -> None:
    fields = {"prompt_token_ids": pb.TokenIds(ids=LONG), "prompt_logprobs": 1}
    chunks = await system.rig.stream(EXACT, 5, **fields)
    assert [len(chunk.prompt) for chunk in chunks] == [len(LONG)] + [0] * (len(chunks) - 1)
    assert chunks[0].origin.weight_fingerprint and chunks[0].prompt_tokens == len(LONG)
    tokens = joined(chunks)
    resume = pb.Resumption(choices=[pb.ReceivedChoice(index=0, token_ids=tokens[:2])])
    resumed = await system.rig.stream(EXACT, 5, **fields, resume=resume)
    assert not any(chunk.prompt for chunk in resumed)
    assert joined(resumed) == tokens[2:]


async def test_a_prompt_of_one_token_needs_no_target(system: Targets) -> None:
    response = await system.scored(prompt_token_ids=None, prompt="a", max_new_tokens=0)
    (token,) = response.prompt
    assert token.text == "a" and not token.HasField("logprob")
    assert response.choices[0].finish_reason == pb.FINISH_REASON_LENGTH
    assert not any(target.num_opened for target in system.targets)


async def test_limits_are_named(system: Targets) -> None:
    for fields, part in (
        ({"prompt_logprobs": 21}, "prompt_logprobs is 21, must be 0 to 20"),
        ({"max_new_tokens": 131_073}, "max_new_tokens is 131073, must be 0 to 131072"),
        ({"priority": -(2**31)}, "priority is -2147483648, must be -2147483647 to 2147483647"),
    ):
        error = await system.rig.rejection(prompt="hello", **fields)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT and part in str(error.details())


class FullOnce(LoggingTarget):
    """A target that refuses its first sequence, as soon as it may."""

    def __init__(self, **info: Any) -> None:
        super().__init__(MODEL, **info)
        self.reached, self.may_refuse = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def session(self, opening: Open) -> AsyncIterator[Any]:
        if not self.reached.is_set():
            self.reached.set()
            await self.may_refuse.wait()
            raise Overloaded("full", 0.05)
        async with super().session(opening) as session:
            yield session


async def test_a_refused_prompt_keeps_no_slots_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both clients have one IP address here, and differ in how each protocol reports it.
    monkeypatch.setattr(peers, "network_of", lambda address: address)
    target = FullOnce(max_sequences=2)
    async with (
        running(save_tokenizer(tmp_path), [target], http_port=0, model_name="fake") as rig,
        httpx2.AsyncClient(base_url=rig.addresses[1], timeout=240) as http,
        asyncio.timeout(240),
    ):
        request = make_request(PLAIN, 3, n=2, prompt_logprobs=1)
        scored = asyncio.ensure_future(rig.stub.Generate(request, timeout=240))
        await target.reached.wait()
        body = {"model": "fake", "prompt": "fox", "max_tokens": 3, "n": 2}
        other = asyncio.create_task(http.post("/v1/completions", json=body))
        while "flyserve_requests_queued 1.0\n" not in (await http.get("/metrics")).text:
            await asyncio.sleep(0.01)
        target.may_refuse.set()
        assert (await other).status_code == 200
        assert [len(choice.tokens) for choice in (await scored).choices] == [3, 3]
