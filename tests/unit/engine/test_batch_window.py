"""The delay of a forward so that sequences about to return can join it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.messages import Open, Role
from flyserve.core.request import SamplingParams
from services.engine.base import ForwardInput
from services.engine.scheduling.batch_window import BatchWindow
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from tests.support.clock import VirtualClock

BUDGET = 512


def forward_input(slot: int = 0, rows: int = 1) -> ForwardInput:
    return ForwardInput(slot, 0, [20] * rows, 1, SamplingParams(), 0, [20] * rows)


def make_window(
    clock: VirtualClock, away: int, trip_s: float, base_s: float = 0.02, row_s: float = 0.0
) -> BatchWindow:
    """Return a window with these forward costs; sequences 1 to `away` were just answered."""
    window = BatchWindow(clock, BUDGET)
    for rows in (1, 2, 4, 8, 16, 32, 64):
        window.record_forward(rows, base_s + row_s * rows)
    for _ in range(20):
        for slot in range(1, away + 1):
            window.record_answer(slot, 1)
        clock.advance(trip_s)
        for slot in range(1, away + 1):
            window.record_arrival(slot, clock.now())
    for slot in range(1, away + 1):
        window.record_answer(slot, 1)
    return window


def test_a_forward_waits_for_half_of_the_sequences_if_they_return_soon() -> None:
    wait_s = make_window(VirtualClock(), away=8, trip_s=0.002).wait_s([forward_input()] * 8)
    assert wait_s == pytest.approx(0.002, rel=0.2)


@pytest.mark.parametrize(
    ("ready", "away", "trip_s", "base_s", "row_s"),
    [
        pytest.param(8, 0, 0.002, 0.02, 0.0, id="no sequence is expected"),
        pytest.param(0, 8, 0.002, 0.02, 0.0, id="no sequence is ready"),
        pytest.param(8, 8, 0.05, 0.02, 0.0, id="they return after the forward ends"),
        pytest.param(60, 1, 0.002, 0.02, 0.0, id="only one of many is expected"),
        pytest.param(8, 8, 0.002, 0.0005, 0.002, id="the cost of a forward is that of its rows"),
        pytest.param(BUDGET, 8, 0.002, 0.02, 0.0, id="the forward is full"),
    ],
)
def test_otherwise_a_forward_begins_at_once(
    ready: int, away: int, trip_s: float, base_s: float, row_s: float
) -> None:
    assert make_window(VirtualClock(), away, trip_s, base_s, row_s).wait_s([forward_input()] * ready) == 0.0


def test_closed_and_late_sequences_are_not_awaited() -> None:
    clock = VirtualClock()
    window = make_window(clock, away=2, trip_s=0.002)
    window.forget(1)
    assert window.wait_s([forward_input()]) > 0
    clock.advance(0.004)
    assert window.wait_s([forward_input()]) == 0.0


def test_without_measurements_no_forward_waits() -> None:
    window = BatchWindow(VirtualClock(), BUDGET)
    window.record_answer(1, 1)
    assert window.wait_s([forward_input()]) == 0.0
    window.record_forward(1, 0.02)
    assert window.wait_s([forward_input()]) == 0.0


@given(
    st.lists(st.tuples(st.integers(1, 64), st.floats(1e-4, 0.1)), min_size=1, max_size=10),
    st.lists(st.lists(st.floats(0.0, 0.2), min_size=1, max_size=5), max_size=10),
    st.integers(1, 20),
)
def test_all_delays_of_a_forward_are_no_longer_than_the_forward(
    forwards: list[tuple[int, float]], trips: list[list[float]], ready: int
) -> None:
    clock = VirtualClock()
    window = BatchWindow(clock, BUDGET)
    for rows, seconds in forwards:
        window.record_forward(rows, seconds)
    for slot, own in enumerate(trips):
        for seconds in own:
            window.record_answer(slot, 1)
            clock.advance(seconds)
            window.record_arrival(slot, clock.now())
        window.record_answer(slot, 1)
    began, longest_s = clock.now(), max(seconds for _, seconds in forwards)
    while (wait_s := window.wait_s([forward_input()] * ready)) > 0:
        clock.advance(wait_s)
    assert clock.now() - began <= longest_s * (1 + 1e-9)


async def test_sequences_that_return_soon_share_one_forward() -> None:
    clock, trip_s, lap_ends = VirtualClock(), 0.002, list[float]()
    config = SimulatedConfig(base_s=0.02, per_token_s=0.0001, context_length=4096)
    engine = ClockEngine(SimulatedRunner(config, Role.TARGET, 16, 65_536), clock)
    await engine.start()

    async def decode(index: int) -> None:
        sequence = await engine.open(Open("r", 1))
        sequence.extend([20])
        await clock.sleep(trip_s * index / 16)
        for _ in range(100):
            await engine.run(sequence.score())
            lap_ends.append(clock.now())
            sequence.extend([20])
            await clock.sleep(trip_s * (1 + index / 100))

    await clock.run(decode(index) for index in range(16))
    await engine.stop()
    lap_s = (lap_ends[16 * 80] - lap_ends[16 * 40]) / 40
    assert lap_s == pytest.approx(0.02 + 16 * 0.0001 + 0.0024, rel=0.1), "one forward and one round trip"
