"""Whether a forward waits for those who are about to come back."""

import asyncio
import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fly.clock import VirtualClock
from fly.messages import Open, Role
from fly.request import SamplingParams
from fly.sequence import SequenceUpdate
from services.engine.base import Work
from services.engine.core import EngineCore
from services.engine.gathering import Gathering
from services.engine.promise import Promise
from services.engine.sequence import EngineSequence
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from services.engine.ticket import works

BUDGET = 512


def work(slot: int = 0, rows: int = 1) -> Work:
    return Work(slot, 0, [20] * rows, 1, SamplingParams(), 0, [20] * rows)


def gathering(
    clock: VirtualClock, away: int, trip_s: float, base_s: float = 0.02, row_s: float = 0.0
) -> Gathering:
    """One whose forwards cost so much, and whose sequences 1, 2, ... have just left for so long a trip."""
    found = Gathering(clock, BUDGET)
    for rows in (1, 2, 4, 8, 16, 32, 64):
        found.saw_forward(rows, base_s + row_s * rows)
    for _ in range(20):
        for slot in range(1, away + 1):
            found.answered(slot, 1)
        clock.advance(trip_s)
        for slot in range(1, away + 1):
            found.came(slot, clock.now())
    for slot in range(1, away + 1):
        found.answered(slot, 1)
    return found


def test_half_of_the_sequences_are_waited_for_when_they_come_soon() -> None:
    wait_s = gathering(VirtualClock(), away=8, trip_s=0.002).wait_s([work()] * 8)
    assert wait_s == pytest.approx(0.002, rel=0.2)


@pytest.mark.parametrize(
    ("ready", "away", "trip_s", "base_s", "row_s"),
    [
        pytest.param(8, 0, 0.002, 0.02, 0.0, id="nobody is away"),
        pytest.param(0, 8, 0.002, 0.02, 0.0, id="nobody is ready"),
        pytest.param(8, 8, 0.05, 0.02, 0.0, id="they come later than the forward ends"),
        pytest.param(60, 1, 0.002, 0.02, 0.0, id="it is one of many"),
        pytest.param(8, 8, 0.002, 0.0005, 0.002, id="a forward costs its rows and little else"),
        pytest.param(BUDGET, 8, 0.002, 0.02, 0.0, id="the forward is full"),
    ],
)
def test_otherwise_it_begins_at_once(
    ready: int, away: int, trip_s: float, base_s: float, row_s: float
) -> None:
    assert gathering(VirtualClock(), away, trip_s, base_s, row_s).wait_s([work()] * ready) == 0.0


def test_who_has_left_or_is_late_is_not_waited_for() -> None:
    clock = VirtualClock()
    found = gathering(clock, away=2, trip_s=0.002)
    found.left(1)
    assert found.wait_s([work()]) > 0
    clock.advance(0.004)
    assert found.wait_s([work()]) == 0.0


def test_before_anything_is_known_nobody_waits() -> None:
    found = Gathering(VirtualClock(), BUDGET)
    found.answered(1, 1)
    assert found.wait_s([work()]) == 0.0
    found.saw_forward(1, 0.02)
    assert found.wait_s([work()]) == 0.0


@given(
    st.lists(st.tuples(st.integers(1, 64), st.floats(1e-4, 0.1)), min_size=1, max_size=10),
    st.lists(st.lists(st.floats(0.0, 0.2), min_size=1, max_size=5), max_size=10),
    st.integers(1, 20),
)
def test_all_waits_before_a_forward_are_no_longer_than_it(
    forwards: list[tuple[int, float]], trips: list[list[float]], ready: int
) -> None:
    clock = VirtualClock()
    found = Gathering(clock, BUDGET)
    for rows, seconds in forwards:
        found.saw_forward(rows, seconds)
    for slot, own in enumerate(trips):
        for seconds in own:
            found.answered(slot, 1)
            clock.advance(seconds)
            found.came(slot, clock.now())
        found.answered(slot, 1)
    began, longest_s = clock.now(), max(seconds for _, seconds in forwards)
    while (wait_s := found.wait_s([work()] * ready)) > 0:
        clock.advance(wait_s)
    assert clock.now() - began <= longest_s * (1 + 1e-9)


class Laps:
    """Sequences of an engine that come back a round trip after each answer, on a virtual clock."""

    def __init__(self, sequences: int, trip_s: float, config: SimulatedConfig) -> None:
        self.clock = VirtualClock()
        self.runner = SimulatedRunner(config, Role.TARGET, sequences, 65_536)
        self.core = EngineCore(self.runner, BUDGET, 0, self.clock)
        self.num_forwards = 0
        self._trip_s = trip_s
        self._arrivals = [(trip_s * index / sequences, index) for index in range(sequences)]
        self._sequences = [self._open() for _ in range(sequences)]
        self._scored: list[Promise | None] = [None] * sequences

    def run(self, forwards: int) -> None:
        while self.num_forwards < forwards:
            self._arrive()
            if not self.core.has_work:
                self.clock.advance(self._arrivals[0][0] - self.clock.now())
            elif (wait_s := self.core.wait_s()) > 0:
                self.clock.advance(min(wait_s, max(0.0, self._next_s() - self.clock.now())))
            else:
                self._forward()

    def _next_s(self) -> float:
        return self._arrivals[0][0] if self._arrivals else float("inf")

    def _open(self) -> EngineSequence:
        opened = Promise()
        self.core.open(Open("r", 1), opened)
        assert isinstance(opened.result, EngineSequence)
        opened.result.apply(SequenceUpdate(1, 0, (20,), 0, 0))
        return opened.result

    def _arrive(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self.clock.now():
            at_s, index = heapq.heappop(self._arrivals)
            sequence, self._scored[index] = self._sequences[index], Promise()
            sequence.extend([20])
            self.core.submit(sequence.score(1), 0, int(at_s * 1e9), self._scored[index])

    def _forward(self) -> None:
        batch = self.core.begin()
        done = works(batch)
        seconds = self.runner.forward_s(done)
        self.clock.advance(seconds)
        self.core.finish(batch, self.runner.forward(done), 0, int(seconds * 1e9))
        self.num_forwards += 1
        for index, promise in enumerate(self._scored):
            if promise is not None and promise.result is not None:
                self._scored[index] = None
                heapq.heappush(self._arrivals, (self.clock.now() + self._trip_s * (1 + index / 100), index))


def test_sequences_that_come_back_soon_go_in_one_forward_and_not_in_two() -> None:
    async def live() -> None:
        config = SimulatedConfig(base_s=0.02, per_token_s=0.0001, context_length=4096)
        laps = Laps(16, 0.002, config)
        laps.run(40)
        start_s, forwards = laps.clock.now(), 60
        laps.run(40 + forwards)
        lap_s = (laps.clock.now() - start_s) / forwards
        assert lap_s == pytest.approx(0.02 + 16 * 0.0001 + 0.0024, rel=0.1), "a forward of all, and a trip"

    asyncio.run(live())
