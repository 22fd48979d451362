"""No stalls: a step that arrives during prefills is in the next forward."""

import asyncio

import pytest

from fly.messages import Open, Role
from fly.sequence import SequenceUpdate
from services.engine.core import EngineCore
from services.engine.future import EngineFuture
from services.engine.scheduling.scheduler import forward_inputs
from services.engine.sequence import EngineSequence
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from tests.support.clock import VirtualClock

CONFIG = SimulatedConfig(context_length=8192)


class Driver:
    """Drives an engine's core: one forward per turn."""

    def __init__(self) -> None:
        self.runner = SimulatedRunner(CONFIG, Role.TARGET, 64, 200_000)
        self.core = EngineCore(self.runner, 512, 0, VirtualClock())
        self.num_forwards = 0

    def submit(self, tokens: list[int], num_outputs: int, priority: int = 0) -> EngineFuture:
        opened, scored = EngineFuture(), EngineFuture()
        self.core.open(Open("r", len(tokens)), opened)
        sequence = opened.result
        assert isinstance(sequence, EngineSequence)
        sequence.apply(SequenceUpdate(1, 0, tuple(tokens), 0, 0))
        self.core.submit(sequence.score(num_outputs), priority, 0, scored)
        return scored

    def turn(self) -> int:
        """Run a forward; return its token rows."""
        batch = self.core.next_batch()
        item = forward_inputs(batch)
        self.core.complete(batch, self.runner.forward(item), 0, 1)
        self.num_forwards += 1
        return sum(len(each.tokens) for each in item)


@pytest.mark.parametrize("num_prefills", [1, 2, 12])
@pytest.mark.parametrize("arrival", [0, 1, 3, 4, 5, 9])
def test_a_verification_during_long_prefills_is_in_the_next_forward(num_prefills: int, arrival: int) -> None:
    async def live() -> None:
        driver = Driver()
        prefills = [driver.submit([20 + index] * 4000, 1) for index in range(num_prefills)]
        for _ in range(arrival):
            assert driver.turn() <= 512
        verifications = [driver.submit([40 + index] * 16, 16) for index in range(16)]
        driver.turn()
        assert all(future.result is not None for future in verifications)
        assert not any(future.result for future in prefills)

    asyncio.run(live())


def test_prefills_progress_while_verifications_never_stop() -> None:
    async def live() -> None:
        driver = Driver()
        prefill = driver.submit([20] * 4000, 1)
        while prefill.result is None:
            assert driver.num_forwards < 100
            batch = [driver.submit([40 + index] * 16, 16) for index in range(2)]
            assert driver.turn() <= 512
            assert all(future.result is not None for future in batch)
        _, times = prefill.result
        assert times.prefill_tokens == 3999 and times.batch_size == 3
        assert driver.num_forwards == 16

    asyncio.run(live())
