"""Sequences whose masks are late: they wait alone, and go on whatever has happened to them meanwhile."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from flyserve.core.errors import NotReady
from flyserve.core.messages import Role
from services.engine.base import ForwardInput, Scores
from services.engine.future import EngineFuture
from services.engine.scheduling.scheduler import forward_inputs
from services.engine.sequence import EngineSequence
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from tests.support.core_driver import CoreDriver

CONFIG = SimulatedConfig(context_length=8192)


class Driver(CoreDriver):
    """A core whose masks of the slots in `late` are late."""

    def __init__(self, kv_tokens: int = 4096, runner: SimulatedRunner | None = None) -> None:
        super().__init__(SimulatedRunner(CONFIG, Role.TARGET, 8, kv_tokens) if runner is None else runner)
        self.late: dict[int, Future[Any]] = {}

    def sequence(self, num_tokens: int, priority: int = 0) -> EngineSequence:
        return self.open(range(20, 20 + num_tokens), priority=priority, max_new_tokens=1)

    def forward(self, inputs: list[ForwardInput]) -> list[Scores]:
        scores = super().forward(inputs)
        for index, item in enumerate(inputs):
            if item.slot in self.late and item.num_outputs:
                scores[index] = replace(Scores((), (), ()), error="late", late=self.late[item.slot])
        return scores


def begin(driver: Driver) -> tuple[EngineSequence, EngineFuture, "Future[Any]"]:
    """Return a sequence that waits for its masks."""
    slow = driver.sequence(16)
    masks = driver.late[slow.slot] = Future[Any]()
    scored = driver.score(slow)
    assert len(driver.turn()) == 1 and len(driver.turn()) == 0
    assert scored.result is None and not driver.core.has_work
    return slow, scored, masks


def finish(driver: Driver, masks: "Future[Any]") -> None:
    driver.late.clear()
    masks.set_result(None)


async def test_it_waits_alone_and_is_computed_when_they_are_there() -> None:
    driver = Driver()
    _, scored, masks = begin(driver)
    other = driver.sequence(16)
    for _ in range(3):
        assert driver.score(other) and len(driver.turn()) == 1
    finish(driver, masks)
    assert len(driver.turn()) == 1
    expected = driver.score(driver.sequence(16))
    driver.turn()
    assert scored.result[0].choices == expected.result[0].choices


@pytest.mark.parametrize("is_closed", [False, True])
async def test_it_may_end_meanwhile(is_closed: bool) -> None:
    driver = Driver()
    slow, scored, masks = begin(driver)
    if is_closed:
        driver.core.close(slow)
        assert isinstance(scored.error, NotReady)
    else:
        driver.core.cancel(scored)
        again = driver.score(slow)
    finish(driver, masks)
    assert len(driver.turn()) == (0 if is_closed else 1)
    assert is_closed or again.result[0].choices


async def test_it_may_lose_its_memory_meanwhile() -> None:
    driver = Driver(kv_tokens=1024)
    _, scored, masks = begin(driver)
    large = driver.sequence(64, priority=1)
    driver.score(large)
    driver.turn()
    large.extend([20] * 950)
    grown = driver.score(large)
    while grown.result is None:
        driver.turn()
    assert driver.core.load().preemptions == 1
    finish(driver, masks)
    assert len(driver.turn()) == 0 and scored.result is None
    driver.core.close(large)
    while scored.result is None:
        assert len(driver.turn()) == 1
    assert scored.result[0].choices


class StateRunner(SimulatedRunner):
    """A model whose state takes in a row once: a row computed again counts twice."""

    def __init__(self) -> None:
        super().__init__(CONFIG, Role.TARGET, 8, 4096)
        self.info = replace(self.info, plain_only="its recurrent layers keep a state")
        self.taken: dict[int, int] = {}

    def forward(self, batch: Sequence[ForwardInput]) -> list[Scores]:
        for item in batch:
            assert item.start in (0, self.taken.get(item.slot)), "a row is taken in twice"
            self.taken[item.slot] = item.end
        return super().forward(batch)


def prefilled(driver: Driver) -> EngineSequence:
    """Return a sequence whose state has all tokens but the last."""
    sequence = driver.sequence(16)
    driver.finish(driver.score(sequence))
    sequence.extend([7])
    return sequence


async def test_a_state_that_cannot_be_repeated_is_computed_from_its_start() -> None:
    driver = Driver(runner=StateRunner())
    sequence = prefilled(driver)
    masks = driver.late[sequence.slot] = Future[Any]()
    scored = driver.score(sequence)
    assert [item.start for item in driver.turn()] == [16]
    finish(driver, masks)
    assert [item.start for item in driver.turn()] == [0] and scored.result


async def test_neighbours_of_a_failed_forward_are_computed_from_their_start() -> None:
    driver = Driver(runner=StateRunner())
    scored = [driver.score(prefilled(driver)) for _ in range(2)]
    batch = driver.core.next_batch()
    driver.forward(forward_inputs(batch))
    for half in driver.core.fail(batch, RuntimeError("after the model's forward")):
        driver.core.complete(half, driver.forward(forward_inputs(half)), 0, 1)
    assert all(future.result for future in scored)
