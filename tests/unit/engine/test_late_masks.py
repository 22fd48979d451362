"""Sequences whose masks are late: they wait alone, and go on whatever has happened to them meanwhile."""

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from fly.errors import NotReady
from fly.messages import Open, Role
from fly.sequence import SequenceUpdate
from services.engine.base import Scores
from services.engine.core import EngineCore
from services.engine.future import EngineFuture
from services.engine.scheduling.scheduler import forward_inputs
from services.engine.sequence import EngineSequence
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from tests.support.clock import VirtualClock

CONFIG = SimulatedConfig(context_length=8192)


class Driver:
    """Drives an engine's core; the masks of the slots in `late` are late."""

    def __init__(self, kv_tokens: int = 4096) -> None:
        self.runner = SimulatedRunner(CONFIG, Role.TARGET, 8, kv_tokens)
        self.core = EngineCore(self.runner, 512, 0, VirtualClock())
        self.late: dict[int, Future[Any]] = {}

    def open(self, num_tokens: int, priority: int = 0) -> EngineSequence:
        opened = EngineFuture()
        self.core.open(Open("r", num_tokens, priority=priority, max_new_tokens=1), opened)
        assert isinstance(opened.result, EngineSequence)
        ids = tuple(range(20, 20 + num_tokens))
        opened.result.apply(SequenceUpdate(1, 0, ids, num_tokens, 0))
        return opened.result

    def score(self, sequence: EngineSequence) -> EngineFuture:
        scored = EngineFuture()
        self.core.submit(sequence.score(), sequence.priority, 0, scored)
        return scored

    def turn(self) -> int:
        """Run a forward; return the number of its inputs."""
        batch = self.core.next_batch()
        inputs = forward_inputs(batch)
        scores = self.runner.forward(inputs)
        for index, item in enumerate(inputs):
            if item.slot in self.late and item.num_outputs:
                scores[index] = replace(Scores((), (), ()), error="late", late=self.late[item.slot])
        self.core.complete(batch, scores, 0, 1)
        return len(inputs)


def begin(driver: Driver) -> tuple[EngineSequence, EngineFuture, "Future[Any]"]:
    """Return a sequence that waits for its masks."""
    slow = driver.open(16)
    masks = driver.late[slow.slot] = Future[Any]()
    scored = driver.score(slow)
    assert driver.turn() == 1 and driver.turn() == 0
    assert scored.result is None and not driver.core.has_work
    return slow, scored, masks


def finish(driver: Driver, masks: "Future[Any]") -> None:
    driver.late.clear()
    masks.set_result(None)


async def test_it_waits_alone_and_is_computed_when_they_are_there() -> None:
    driver = Driver()
    _, scored, masks = begin(driver)
    other = driver.open(16)
    for _ in range(3):
        assert driver.score(other) and driver.turn() == 1
    finish(driver, masks)
    assert driver.turn() == 1
    expected = driver.score(driver.open(16))
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
    assert driver.turn() == (0 if is_closed else 1)
    assert is_closed or again.result[0].choices


async def test_it_may_lose_its_memory_meanwhile() -> None:
    driver = Driver(kv_tokens=1024)
    _, scored, masks = begin(driver)
    large = driver.open(64, priority=1)
    driver.score(large)
    driver.turn()
    large.extend([20] * 950)
    grown = driver.score(large)
    while grown.result is None:
        driver.turn()
    assert driver.core.load().preemptions == 1
    finish(driver, masks)
    assert driver.turn() == 0 and scored.result is None
    driver.core.close(large)
    while scored.result is None:
        assert driver.turn() == 1
    assert scored.result[0].choices
