"""A limit on the gap of rescued tokens: what a target is asked for, and what follows from its answer."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from flyserve.core.messages import Extend, Open, Verification, VerifyStep
from flyserve.core.sequence import ReplicatedSequence
from flyserve.v1 import generation_pb2 as pb
from tests.contract.fakes import GAP, FakeDrafter, HashModel
from tests.contract.router_rig import FLY, PLAIN, Answer, Rig, ids, running
from tests.contract.scripted import LoggingTarget

DRAFTER = HashModel(agreement=0.9)


class Target(LoggingTarget):
    """A target whose verifications have a fixed number of gaps; None has one per draft."""

    def __init__(self, num_gaps: int | None = None) -> None:
        super().__init__(HashModel())
        self._num_gaps = num_gaps
        self.answers: list[Verification] = []

    def answer(self, known: ReplicatedSequence, opening: Open, step: VerifyStep | Extend) -> Verification:
        answer = super().answer(known, opening, step)
        if self._num_gaps is not None and isinstance(step, VerifyStep):
            answer = answer._replace(gaps=(0.0,) * self._num_gaps)
        self.answers.append(answer)
        return answer


@pytest.fixture
async def target() -> Target:
    return Target()


@pytest.fixture
async def rig(model: Path, target: Target) -> AsyncIterator[Rig]:
    async with running(model, [target], [FakeDrafter(DRAFTER)], stream_interval_s=10.0) as rig:
        yield rig


async def decode(rig: Rig, limit: float | None, **fields: Any) -> Answer:
    speculation = {} if limit is None else {"max_logprob_gap": limit}
    return await rig.generate(FLY, 100, speculation={"preset": "official", **speculation}, **fields)


def num_rescued(response: Answer) -> int:
    return sum(token.verdict == pb.VERDICT_RESCUED for token in response.tokens)


@pytest.mark.parametrize("limit, rescues", [(GAP, True), (GAP - 0.01, False), (0.0, False)])
async def test_a_token_beyond_the_limit_is_not_rescued(rig: Rig, limit: float, rescues: bool) -> None:
    limited, plain = await decode(rig, limit), await rig.generate(PLAIN, 100)
    assert bool(num_rescued(limited)) is rescues
    assert limited.statistics.rejected_by_guard if not rescues else limited.statistics.rescued
    assert (ids(limited) == ids(plain)) is not rescues


async def test_only_a_rule_with_a_limit_asks_for_gaps_and_for_no_log_probabilities(
    rig: Rig, target: Target
) -> None:
    await decode(rig, None)
    assert not any(answer.gaps for answer in target.answers)
    await decode(rig, 1.0)
    await rig.generate(pb.MODE_EXACT, 20, speculation={"max_logprob_gap": 1.0})
    await rig.generate(FLY, 20)
    assert [opening.with_gaps for opening in target.openings] == [False, True, False, True]
    assert all(opening.num_logprobs is None for opening in target.openings)


async def test_a_limit_changes_nothing_for_tokens_without_a_draft(rig: Rig, target: Target) -> None:
    await rig.generate(FLY, 60, speculation={"max_logprob_gap": 1.0, "draft_length": {"max": 0}})
    assert target.asked and all(isinstance(step, Extend) and step.without_entropies for step in target.asked)


async def test_log_probabilities_may_be_requested_as_well(rig: Rig) -> None:
    alone, both = await decode(rig, GAP), await decode(rig, GAP, logprobs=2)
    assert ids(alone) == ids(both) and num_rescued(both)
    assert all(len(token.logprobs.top) == 2 for token in both.tokens)


async def test_an_older_target_which_knows_no_gaps_rescues_nothing(model: Path) -> None:
    async with running(model, [Target(num_gaps=0)], [FakeDrafter(DRAFTER)]) as rig:
        limited, plain = await decode(rig, 1.0), await rig.generate(PLAIN, 100)
        assert num_rescued(limited) == 0 and ids(limited) == ids(plain)
        assert num_rescued(await decode(rig, None))


async def test_a_target_with_a_wrong_number_of_gaps_is_left(model: Path) -> None:
    targets: Sequence[Target] = (Target(num_gaps=1), Target())
    async with running(model, targets, [FakeDrafter(DRAFTER)], balancing="round_robin") as rig:
        responses = [await decode(rig, GAP) for _ in range(2)]
        assert {tuple(ids(response)) for response in responses} == {tuple(ids(await decode(rig, GAP)))}
        assert sum(response.statistics.replays for response in responses)
