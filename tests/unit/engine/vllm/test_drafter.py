"""A drafter on vLLM, against a stand-in for `AsyncLLM`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from fly.errors import InvalidRequest, NotReady, Overloaded
from fly.messages import Draft, DraftStep, Open, Role
from fly.request import SamplingParams
from fly.sequence import SequenceMirror, SequenceUpdate, StaleState, TokenSequence
from fly.types import Coupling
from services.drafter.vllm import VllmDrafter
from services.engine.vllm.engine import VllmEngine
from tests.unit.engine.vllm.vllm_client import PROMPT, greedy, opened
from tests.unit.engine.vllm.vllm_stand_in import BLOCK, StandIn, stand_in_engine


class Drafts:
    """The client's side of one sequence."""

    def __init__(self, session: Any) -> None:
        self.sequence, self._mirror, self.session = TokenSequence(PROMPT), SequenceMirror(), session

    async def draft(self, max_tokens: int, end_at_stop: bool = False) -> Draft:
        update = self._mirror.update(self.sequence, (), len(self.sequence))
        answer = await self.session.step(DraftStep(update, max_tokens, end_at_stop))
        self._mirror.append(answer.tokens)
        return answer


def drafter_engine(llm: StandIn, **fields: Any) -> VllmEngine:
    return stand_in_engine(llm, role=Role.DRAFTER, **fields)


@asynccontextmanager
async def drafting(engine: VllmEngine, **fields: Any) -> AsyncIterator[Drafts]:
    async with VllmDrafter(engine, max_draft=16).open(Open("r", len(PROMPT), **fields)) as session:
        yield Drafts(session)


async def test_a_draft_is_one_greedy_request_and_is_kept() -> None:
    llm, expected = StandIn(), greedy(PROMPT, 12)
    async with drafting(drafter_engine(llm)) as client:
        first = await client.draft(5)
        assert list(first.tokens) == expected[:5] and first.forwards == 5 and len(llm.requests) == 1
        client.sequence.extend(expected[:5])
        client.sequence.extend([60])
        second = await client.draft(4)
        assert list(second.tokens) == greedy([*PROMPT, *expected[:5], 60], 4)
        assert second.times.batch_tokens <= len(PROMPT) + 6 - BLOCK
    assert len(llm.requests) == 2


async def test_a_step_without_a_draft_only_updates_the_sequence() -> None:
    llm = StandIn()
    async with drafting(drafter_engine(llm)) as client:
        assert (await client.draft(0)).tokens == ()
        with pytest.raises(StaleState):
            await client.session.step(DraftStep(SequenceUpdate(9, 60, (), 60, 1), 3))
    assert not llm.requests


@pytest.mark.parametrize(("end_at_stop", "ignore_eos", "ends"), [(1, 0, 1), (0, 0, 0), (1, 1, 0)])
async def test_a_draft_ends_at_a_stop_token_where_asked(end_at_stop: int, ignore_eos: int, ends: int) -> None:
    expected = greedy(PROMPT, 8)
    stop = expected[3]
    sampling = SamplingParams(stop_token_ids=(stop,), ignore_eos=bool(ignore_eos))
    async with drafting(drafter_engine(StandIn()), sampling=sampling) as client:
        found = await client.draft(8, bool(end_at_stop))
    assert list(found.tokens) == (expected[: expected.index(stop) + 1] if ends else expected)


@pytest.mark.parametrize("standalone", [False, True])
async def test_a_draft_with_shared_noise_is_what_the_target_draws(standalone: bool) -> None:
    sampling = SamplingParams(temperature=0.9, top_k=6, min_p=0.05, seed=4)
    async with drafting(drafter_engine(StandIn()), sampling=sampling, standalone=standalone) as client:
        drawn = (await client.draft(8)).tokens
    async with opened(stand_in_engine(StandIn()), sampling=sampling) as target:
        assert (await target.extend(8)).choices == drawn


async def test_a_draft_under_rejection_reports_its_distributions() -> None:
    sampling = SamplingParams(temperature=0.9, top_k=0, seed=4, coupling=Coupling.REJECTION)
    async with drafting(drafter_engine(StandIn()), sampling=sampling) as client:
        found = await client.draft(4)
    assert len(found.distributions) == 4
    for token, distribution in zip(found.tokens, found.distributions, strict=True):
        assert token in distribution.ids
        assert np.isclose(sum(distribution.probabilities), 1.0)


async def test_a_full_drafter_refuses_at_once() -> None:
    engine = drafter_engine(StandIn(), max_sequences=1, max_queued=5)
    async with drafting(engine):
        with pytest.raises(Overloaded):
            async with drafting(engine):
                pass
    async with drafting(engine) as client:
        assert (await client.draft(1)).load.sequences == 1


async def test_limits_of_a_draft() -> None:
    async with drafting(drafter_engine(StandIn())) as client:
        assert len((await client.draft(17)).tokens) == 16
    async with drafting(drafter_engine(StandIn())) as client:
        client.sequence.extend([7] * (509 - len(PROMPT)))
        assert len((await client.draft(16)).tokens) == 2
        await client.session.finish(SequenceUpdate(9, 400, (), 400, 1))


async def test_a_drafter_that_stops_ends_its_sessions() -> None:
    engine = drafter_engine(StandIn())
    async with drafting(engine) as client:
        await VllmDrafter(engine, 16).stop()
        with pytest.raises(NotReady):
            await client.draft(3)


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        (SamplingParams(temperature=0.9), "sampling.top_k"),
        (SamplingParams(repetition_penalty=1.2), "sampling.repetition_penalty"),
        (SamplingParams(logit_bias={5: 1.0}), "sampling.logit_bias"),
        (SamplingParams(min_tokens=3), "sampling.min_tokens"),
    ],
)
async def test_without_a_target_it_refuses_what_it_leaves_to_one(
    sampling: SamplingParams, field: str
) -> None:
    engine = drafter_engine(StandIn())
    with pytest.raises(InvalidRequest) as refused:
        async with drafting(engine, sampling=sampling, standalone=True):
            pass
    assert [violation.field for violation in refused.value.violations] == [field]
    async with drafting(engine, sampling=sampling) as client:
        assert (await client.draft(2)).tokens
