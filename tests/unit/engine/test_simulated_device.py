"""A device that a simulated drafter and a simulated target share: one forward at a time, drafts first."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from fly.errors import NotReady
from fly.messages import Open, Role
from fly.request import SamplingParams
from services.engine.base import ForwardInput
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.device import Device
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from tests.support.clock import VirtualClock
from tests.support.touchy_engine import decode

CONFIG = SimulatedConfig(vocab_size=64, base_s=1.0, per_token_s=0.0)
FOREVER = SamplingParams(ignore_eos=True)


class Pair:
    """A target and a drafter whose forwards are recorded; those of the target take three seconds."""

    def __init__(self, is_shared: bool = True, pause_s: float = 0.0) -> None:
        self.clock = VirtualClock()
        self.forwards: list[tuple[Role, float, float, int]] = []
        device = Device(self.clock, pause_s)
        self.target, self.drafter = (
            ClockEngine(
                self._runner(role, cost_s), self.clock, device=device if is_shared else Device(self.clock)
            )
            for role, cost_s in ((Role.TARGET, 3.0), (Role.DRAFTER, 1.0))
        )

    def _runner(self, role: Role, cost_s: float) -> SimulatedRunner:
        clock, forwards = self.clock, self.forwards

        class Recorded(SimulatedRunner):
            def forward_s(self, batch: Sequence[ForwardInput]) -> float:
                seconds = super().forward_s(batch)
                forwards.append((role, clock.now(), clock.now() + seconds, len(batch)))
                return seconds

        return Recorded(replace(CONFIG, base_s=cost_s), role, 8, 4096)

    async def run(self, *steps: tuple[ClockEngine, float, int]) -> None:
        """Let a sequence of each engine begin at its time, and decode so many tokens."""
        await self.target.start()
        await self.drafter.start()
        try:
            await self.clock.run([self.decode(*step) for step in steps])
        finally:
            await self.target.stop()
            await self.drafter.stop()

    async def stop(self, engine: ClockEngine, at_s: float) -> None:
        await self.clock.sleep(at_s)
        await engine.stop()

    async def decode(self, engine: ClockEngine, at_s: float, tokens: int) -> None:
        if at_s:
            await self.clock.sleep(at_s)
        sequence = await engine.open(Open("r", prompt_length=1, sampling=FOREVER))
        sequence.extend((20,))
        await engine.run(decode(sequence, tokens))


def overlaps(pair: Pair) -> bool:
    spans = sorted((begin_s, end_s) for _, begin_s, end_s, _ in pair.forwards)
    return any(begin_s < before_s for (_, before_s), (begin_s, _) in pairwise(spans))


@pytest.mark.parametrize("pause_s", [0.0, 0.7])
async def test_forwards_on_a_shared_device_never_overlap(pause_s: float) -> None:
    steps = [(0.0, 4), (0.5, 5), (1.5, 3), (2.5, 4), (9.0, 6)]
    shared, apart = Pair(pause_s=pause_s), Pair(is_shared=False)
    for pair in (shared, apart):
        engines = (pair.target, pair.drafter, pair.target, pair.drafter, pair.target)
        await pair.run(*((engine, *step) for engine, step in zip(engines, steps, strict=True)))
    assert overlaps(apart), "this load would overlap on two devices"
    assert not overlaps(shared)


async def test_a_draft_is_finished_before_the_next_forward_of_the_target() -> None:
    pair = Pair()
    await pair.run((pair.target, 0.0, 2), (pair.drafter, 0.5, 3))
    spans = [(role, begin_s) for role, begin_s, _, _ in pair.forwards]
    drafts = [(Role.DRAFTER, begin_s) for begin_s in (3.0, 4.0, 5.0)]
    assert spans == [(Role.TARGET, 0.0), *drafts, (Role.TARGET, 6.0)]


@pytest.mark.parametrize(("pause_s", "batches"), [(0.0, [(1.1, 1), (4.1, 1)]), (1.0, [(2.0, 2)])])
async def test_a_target_pauses_for_drafts_that_are_about_to_arrive(
    pause_s: float, batches: list[tuple[float, int]]
) -> None:
    pair = Pair(pause_s=pause_s)
    await pair.run((pair.drafter, 0.0, 1), (pair.target, 1.1, 1), (pair.target, 1.4, 1))
    found = [(begin_s, number) for role, begin_s, _, number in pair.forwards if role is Role.TARGET]
    assert [number for _, number in found] == [number for _, number in batches]
    assert [begin_s for begin_s, _ in found] == pytest.approx([begin_s for begin_s, _ in batches])


async def test_a_drafter_that_is_stopped_while_it_waits_leaves_the_device_to_its_target() -> None:
    pair = Pair()
    await pair.target.start()
    await pair.drafter.start()
    drafting = asyncio.create_task(pair.decode(pair.drafter, 1.0, 4))
    stopping = asyncio.create_task(pair.stop(pair.drafter, 2.0))
    try:
        await pair.clock.run([pair.decode(pair.target, 0.0, 3)])
    finally:
        await pair.target.stop()
    await stopping
    with pytest.raises(NotReady):
        await drafting
    assert [(role, begin_s) for role, begin_s, _, _ in pair.forwards] == [
        (Role.TARGET, begin_s) for begin_s in (0.0, 3.0, 6.0)
    ]
