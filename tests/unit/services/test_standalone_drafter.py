"""Standalone sequences of a drafter: served with the capacity that drafts for targets leave."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from flyserve.core.clock import SystemClock
from flyserve.core.errors import InvalidRequest, Overloaded
from flyserve.core.limits import MOST_PRIORITY
from flyserve.core.messages import DraftStep, Open, Opened, Queued, Role
from flyserve.core.sequence import SequenceUpdate
from services.common.config import parse
from services.drafter.ahead import DraftingLimits
from services.drafter.builtin import BuiltinDrafter
from services.drafter.config import DrafterConfig
from services.drafter.standalone import StandaloneDrafter
from services.drafter.sub_drafters import SubDrafters
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner

PROMPT = tuple(range(20, 28))
DRAFTS = Open("draft", len(PROMPT), max_new_tokens=40)
ALONE = replace(DRAFTS, standalone=True, priority=9)
MOST_DRAFT = 16


@pytest.fixture
async def engine() -> AsyncIterator[ClockEngine]:
    config = SimulatedConfig(base_s=0.0, per_token_s=0.0)
    engine = ClockEngine(SimulatedRunner(config, Role.DRAFTER, 8, 2048), SystemClock())
    await engine.start()
    yield engine
    await engine.stop()


def drafter(engine: ClockEngine, most: int = 2) -> StandaloneDrafter:
    limits = DraftingLimits(max_draft=MOST_DRAFT)
    return StandaloneDrafter(BuiltinDrafter(engine, SubDrafters(None), limits), most)


async def test_as_many_as_allowed_are_open_and_drafts_are_not_limited(engine: ClockEngine) -> None:
    served = drafter(engine)
    assert served.info.standalone_sequences == 2
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(served.open(ALONE))
        with pytest.raises(Overloaded, match="2 sequences without a target are open, at most 2") as refused:
            await stack.enter_async_context(served.open(ALONE))
        for _ in range(4):
            await stack.enter_async_context(served.open(DRAFTS))
    assert refused.value.retry_after_s > 0
    async with served.open(ALONE):
        pass


async def test_memory_is_left_to_drafts_but_an_idle_drafter_takes_any_prompt(engine: ClockEngine) -> None:
    served, long = drafter(engine), replace(ALONE, max_new_tokens=1100)
    async with served.open(long), served.open(DRAFTS):
        pass
    async with served.open(DRAFTS):
        with pytest.raises(Overloaded, match="1108 are needed: more than half is left to drafts"):
            async with served.open(long):
                pass
        async with served.open(ALONE):
            pass


async def test_its_steps_are_cut_and_its_priority_is_the_lowest(engine: ClockEngine) -> None:
    opened: list[Open] = []
    inner = engine.open

    async def recorded(opening: Open, queue: bool = True) -> object:
        opened.append(opening)
        return await inner(opening, queue=queue)

    engine.open = recorded  # type: ignore[assignment]
    async with drafter(engine).open(ALONE) as session:
        draft = await session.step(DraftStep(SequenceUpdate(1, 0, PROMPT, len(PROMPT), 0), 64))
    assert len(draft.tokens) == MOST_DRAFT and opened[0].priority == -MOST_PRIORITY
    assert draft.times.prefill_tokens == len(PROMPT) - 1


async def test_it_reports_the_forwards_of_its_long_prompt_and_a_draft_does_not(engine: ClockEngine) -> None:
    reported = set[Queued | Opened]()

    async def report(notice: Queued | Opened) -> None:
        reported.add(notice)

    prompt = PROMPT * 200
    for opening, expected in ((ALONE, {Opened()}), (replace(DRAFTS, cache_salt="other"), set())):
        reported.clear()
        async with drafter(engine).open(replace(opening, prompt_length=len(prompt)), report) as session:
            await session.step(DraftStep(SequenceUpdate(1, 0, prompt, len(prompt), 0), 4))
        assert reported == expected


async def test_none_is_served_where_none_is_allowed(engine: ClockEngine) -> None:
    with pytest.raises(InvalidRequest, match="this drafter only drafts for targets"):
        async with drafter(engine, most=0).open(ALONE):
            pass


@pytest.mark.parametrize(
    ("data", "limit"),
    [
        ({}, 16),
        ({"max_sequences": 2}, 1),
        ({"standalone_sequences": 0}, 0),
        ({"standalone_sequences": 7}, 7),
        ({"standalone_sequences": 70}, 64),
    ],
)
def test_the_limit_is_a_share_of_the_places(data: dict[str, object], limit: int) -> None:
    config = parse(DrafterConfig, {"simulated": {}, "address": "127.0.0.1:0", **data}, "drafter")
    assert config.standalone_limit == limit
