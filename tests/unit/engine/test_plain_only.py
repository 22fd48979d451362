"""A model whose state cannot be rolled back: one row at a time, or the whole sequence again; no drafts."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from flyserve.core.clock import SystemClock
from flyserve.core.errors import InvalidRequest
from flyserve.core.messages import Extend, Open, Role, VerifyStep
from flyserve.core.sequence import SequenceMirror, TokenSequence
from services.engine.base import ForwardInput, Scores
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from services.target.builtin import BuiltinTarget

CONFIG = SimulatedConfig(base_s=0.0, per_token_s=0.0, context_length=4096)
REASON = "its recurrent layers keep a state"


class StateRunner(SimulatedRunner):
    """Computes a sequence from its start, or one further row of it."""

    def __init__(self) -> None:
        super().__init__(CONFIG, Role.TARGET, 4, 4096)
        self.info = replace(self.info, plain_only=REASON)

    def copy_prefix(self, source: int, slot: int, num_tokens: int) -> bool:
        raise AssertionError("a state cannot be shared")

    def forward(self, batch: Sequence[ForwardInput]) -> list[Scores]:
        for item in batch:
            assert item.start == 0 or (len(item.tokens) == 1 and item.start == self._computed[item.slot])
        return super().forward(batch)


@pytest.fixture
async def target() -> AsyncIterator[BuiltinTarget]:
    engine = ClockEngine(StateRunner(), SystemClock())
    await engine.start()
    yield BuiltinTarget(engine)
    await engine.stop()


async def decoded(target: BuiltinTarget, prompt: list[int], cuts: Sequence[int]) -> list[int]:
    """Decode in steps; drop the last tokens of a step wherever a cut is below its length."""
    known, mirror = TokenSequence(prompt), SequenceMirror()
    async with target.open(Open("r", len(prompt), cache_salt="s")) as session:
        for cut in cuts:
            answer = await session.step(Extend(mirror.update(known, [], len(known)), 4))
            known.extend(answer.choices[:cut])
    return known.ids[len(prompt) :]


async def test_tokens_are_those_of_one_step_after_any_roll_back(target: BuiltinTarget) -> None:
    prompt = list(range(20, 20 + 600))
    whole = await decoded(target, prompt, [4, 4, 4])
    assert (await decoded(target, prompt, [4, 1, 3, 2, 4]))[:12] == whole


async def test_equal_prompts_at_once_share_nothing(target: BuiltinTarget) -> None:
    prompt = list(range(20, 100))
    found = await asyncio.gather(*(decoded(target, prompt, [4, 4]) for _ in range(4)))
    assert all(each == found[0] for each in found) and target.load().reused_tokens == 0


async def test_drafts_are_refused_with_the_reason(target: BuiltinTarget) -> None:
    async with target.open(Open("r", 3)) as session:
        update = SequenceMirror().update(TokenSequence([20, 21, 22]), [23], 3)
        with pytest.raises(InvalidRequest, match=f"num_drafts.*is 1, must be 0: {REASON}"):
            await session.step(VerifyStep(update, 1))
