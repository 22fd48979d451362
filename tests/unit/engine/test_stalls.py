"""What a running engine owes to those who arrive: a place in the next forward, whatever else is prefilled."""

import asyncio

import pytest

from fly.clock import VirtualClock
from fly.messages import Open, Role
from fly.sequence import SequenceUpdate
from services.engine.core import EngineCore
from services.engine.promise import Promise
from services.engine.sequence import EngineSequence
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from services.engine.ticket import works

CONFIG = SimulatedConfig(context_length=8192)


class Driver:
    """An engine's core by hand: one forward per turn."""

    def __init__(self) -> None:
        self.runner = SimulatedRunner(CONFIG, Role.TARGET, 64, 200_000)
        self.core = EngineCore(self.runner, 512, 0, VirtualClock())
        self.num_forwards = 0

    def submit(self, tokens: list[int], num_outputs: int, priority: int = 0) -> Promise:
        opened, scored = Promise(), Promise()
        self.core.open(Open("r", len(tokens)), opened)
        sequence = opened.result
        assert isinstance(sequence, EngineSequence)
        sequence.apply(SequenceUpdate(1, 0, tuple(tokens), 0, 0))
        self.core.submit(sequence.score(num_outputs), priority, 0, scored)
        return scored

    def turn(self) -> int:
        """Runs a forward; its token rows."""
        batch = self.core.begin()
        work = works(batch)
        self.core.finish(batch, self.runner.forward(work), 0, 1)
        self.num_forwards += 1
        return sum(len(each.tokens) for each in work)


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
        assert all(promise.result is not None for promise in verifications)
        assert not any(promise.result for promise in prefills)

    asyncio.run(live())


def test_prefills_go_on_while_verifications_never_cease() -> None:
    async def live() -> None:
        driver = Driver()
        prefill = driver.submit([20] * 4000, 1)
        while prefill.result is None:
            assert driver.num_forwards < 100
            batch = [driver.submit([40 + index] * 16, 16) for index in range(2)]
            assert driver.turn() <= 512
            assert all(promise.result is not None for promise in batch)
        _, times = prefill.result
        assert times.prefill_tokens == 3999 and times.batch_size == 3
        assert driver.num_forwards == 16

    asyncio.run(live())
