"""Carried windows over real sockets: provisional tokens are not streamed, and every window ends cleanly."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flyserve.core.messages import Stale, StaleReason
from flyserve.v1 import common_pb2
from flyserve.v1 import generation_pb2 as pb
from tests.contract.fakes import EOS, FakeService, Script, answers_at, dies_at, save_tokenizer
from tests.contract.router_rig import FLY, PLAIN, PROMPT, Answer, Rig, ids, joined, running
from tests.contract.scripted import LoggingDrafter, LoggingTarget, ScriptedModel

LENGTH = 40
CARRY = {"window": 6, "tail": pb.TAIL_POLICY_CARRY, "draft_length": {"max": 6}}
"""Drafts at response positions 1 to 6: a mismatch at 3 is followed by three matches and carried."""


@dataclass
class Scene:
    rig: Rig
    target: LoggingTarget
    drafter: LoggingDrafter
    spare: LoggingTarget

    async def carried(self, max_new_tokens: int = LENGTH, **fields: Any) -> Answer:
        """Return the response with carried windows; check the decided tokens of all services."""
        self.target.num_steps = self.drafter.num_steps = self.spare.num_steps = 0
        for service in (self.target, self.drafter, self.spare):
            service.updates.steps.clear()
        response = await self.rig.generate(FLY, max_new_tokens, speculation=CARRY, **fields)
        for service in (self.target, self.drafter, self.spare):
            assert service.updates.is_true_to([*PROMPT, *ids(response)])
        return response

    async def plain(self, max_new_tokens: int = LENGTH, **fields: Any) -> list[int]:
        return ids(await self.rig.generate(PLAIN, max_new_tokens, **fields))


@asynccontextmanager
async def scene(folder: Path, deviates: Sequence[int], **model: Any) -> AsyncIterator[Scene]:
    """Start a target, a drafter that differs from it at chosen positions, and a spare target."""
    target, spare = LoggingTarget(ScriptedModel(**model)), LoggingTarget(ScriptedModel(**model))
    drafter = LoggingDrafter(ScriptedModel(deviates=frozenset(deviates), **model))
    config = {"balancing": "round_robin"}
    async with running(save_tokenizer(folder), [target, spare], [drafter], **config) as rig:
        yield Scene(rig, target, drafter, spare)


def verdicts(response: Answer) -> list[int]:
    return [token.verdict for token in response.tokens]


async def test_a_window_filled_by_the_next_draft_is_a_rescue(tmp_path: Path) -> None:
    async with scene(tmp_path, [3]) as stage:
        chunks = await stage.rig.stream(FLY, LENGTH, speculation=CARRY)
        assert [len(chunk.tokens) for chunk in chunks[:3]] == [1, 2, 12], (
            "provisional tokens are not streamed"
        )
        response = await stage.carried()
        assert joined(chunks) == ids(response)
        assert "".join(chunk.text for chunk in chunks) == response.text
    assert verdicts(response)[:8] == [
        pb.VERDICT_PLAIN,
        *([pb.VERDICT_EXACT] * 2),
        pb.VERDICT_RESCUED,
        *([pb.VERDICT_EXACT] * 3),
        pb.VERDICT_BONUS,
    ]
    assert response.statistics.rescued == 1 and response.statistics.emitted == LENGTH
    assert response.statistics.tau == pytest.approx((LENGTH - 1) / (response.statistics.rounds - 1))


async def test_a_window_that_fails_falls_back_to_the_targets_own_token(tmp_path: Path) -> None:
    async with scene(tmp_path, [3, 8]) as stage:
        plain, response = await stage.plain(), await stage.carried()
    assert ids(response) == plain
    assert verdicts(response)[3] == pb.VERDICT_CORRECTED
    assert response.statistics.rejected_by_window == 1 and response.statistics.rescued == 0
    assert response.statistics.accepted < response.statistics.drafted


async def test_min_tokens_delays_the_end_within_a_window(tmp_path: Path) -> None:
    async with scene(tmp_path, [3], ends_at=len(PROMPT) + 5) as stage:
        response = await stage.carried(sampling=common_pb2.SamplingParams(min_tokens=20))
    assert len(response.tokens) == 21 and ids(response)[-1] == EOS and response.statistics.rescued == 1


async def test_losing_the_drafter_within_a_window_leaves_the_targets_own_tokens(tmp_path: Path) -> None:
    async with scene(tmp_path, [3]) as stage:
        plain = await stage.plain()
        dies_at(stage.drafter, 2)
        response = await stage.carried()
    assert ids(response) == plain and "had no draft" in response.warnings[0]
    assert verdicts(response)[3:5] == [pb.VERDICT_CORRECTED, pb.VERDICT_PLAIN]
    assert response.statistics.tau == 2.0, "two tokens were emitted in the one round with a draft"


async def test_a_fail_over_within_a_window_changes_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path, [3, 17, 29]) as stage:
        expected, failed = await stage.carried(), list[FakeService]()
        for target in (stage.target, stage.spare):
            target.script, target.num_steps = fails_once(target, 2, failed), 0
        response = await stage.rig.generate(FLY, LENGTH, speculation=CARRY)
    assert ids(response) == ids(expected) and len(failed) == 1
    assert response.statistics.replays == 1 and response.statistics.rescued == 3


def fails_once(service: FakeService, step: int, failed: list[FakeService]) -> Script:
    """Let the first of several services that reaches this step fail in it."""

    async def script(number: int) -> None:
        if number == step and not failed:
            failed.append(service)
            await service.die()

    return script


@pytest.mark.parametrize("tier", ["target", "spare", "drafter"])
async def test_a_service_that_loses_its_state_in_a_window_gets_a_replay(tmp_path: Path, tier: str) -> None:
    async with scene(tmp_path, [3]) as stage:
        expected = await stage.carried()
        answers_at(getattr(stage, tier), {2}, Stale(0, StaleReason.WRONG_HASH))
        responses = [await stage.carried() for _ in range(2)]
    assert [ids(response) for response in responses] == [ids(expected)] * 2
    assert sum(response.statistics.replays for response in responses) >= 1


async def test_concurrent_responses_carry_their_own_windows(tmp_path: Path) -> None:
    async with scene(tmp_path, [3, 14, 22]) as stage:
        expected = ids(await stage.carried())
        responses = await asyncio.gather(
            *(stage.rig.generate(FLY, LENGTH, speculation=CARRY) for _ in range(6))
        )
    assert [ids(response) for response in responses] == [expected] * 6
