"""Goodput control and every fixed length in the simulated queueing, by cost curve and number of callers."""

from functools import cache

from fly.comparison import Turn
from fly.draft_length.acceptance import AcceptancePool
from fly.draft_length.draft_gain import DraftGain
from fly.draft_length.exploration import Exploration
from fly.draft_length.goodput import GoodputLength
from fly.draft_length.policy import FixedLength
from fly.draft_length.round_time import RoundTimes
from tests.support.queueing_simulation import Costs, RoundLog, RoundSimulation, SimulationClock

MAX_LENGTH = 15


def drafter_s(batch: int) -> float:
    return 0.001 * (1 + 0.005 * batch)


CURVES = {
    "flat": Costs(lambda rows: 0.010, drafter_s),
    "linear": Costs(lambda rows: 0.008 + 0.0005 * rows, drafter_s),
    "knee": Costs(lambda rows: 0.010 * max(1.0, rows / 64), drafter_s),
    "expensive drafter": Costs(lambda rows: 0.010, lambda batch: drafter_s(batch) * 10 / 3),
}
_AGREEMENTS = (0.5, 0.2, 0.95, 0.5, 0.8, 0.2, 0.8)
AGREEMENTS = {1: _AGREEMENTS, 4: _AGREEMENTS, 16: _AGREEMENTS[:4], 64: _AGREEMENTS[:4]}
"""The control has to follow each change; before the first phase it has no data."""
WARM_UP_ROUNDS = 100
MEASURED_ROUNDS = {1: 800, 4: 400, 16: 300, 64: 200}
FIXED_ROUNDS = {1: 200, 4: 100, 16: 100, 64: 60}
LEAST_SHARE = {1: 0.92, 4: 0.92, 16: 0.9, 64: 0.8}
LEAST_OF_PLAIN = {1: 0.96, 4: 0.96, 16: 0.96, 64: 0.92}
"""Of the best fixed length in each phase. With many callers a phase is too short for many trials."""


@cache
def fixed(curve: str, callers: int) -> list[RoundLog]:
    """Run every fixed length in the same traffic; its times do not depend on the agreement."""
    runs = []
    for length in range(MAX_LENGTH + 1):
        simulation = RoundSimulation(
            CURVES[curve], SimulationClock(), callers, lambda k=length: FixedLength(k)
        )
        simulation.run(callers * (15 + FIXED_ROUNDS[callers]))
        runs.append(simulation.log)
    return runs


def controlled(curve: str, callers: int) -> RoundLog:
    """Run the control through all agreements, one after the other."""
    clock = SimulationClock()
    pool, round_times, exploration = AcceptancePool(MAX_LENGTH), RoundTimes(clock), Exploration()
    gain = DraftGain(Turn())

    def make_policy() -> GoodputLength:
        return GoodputLength(pool, round_times, exploration, gain, clock)

    simulation = RoundSimulation(CURVES[curve], clock, callers, make_policy)
    for phase, agreement in enumerate(AGREEMENTS[callers], start=1):
        simulation.agreement = agreement
        simulation.run(phase * callers * (WARM_UP_ROUNDS + MEASURED_ROUNDS[callers]))
    return simulation.log


def check_cell(curve: str, callers: int) -> None:
    """Compare the control in each phase with every fixed length, and with plain decoding."""
    measured, shares = MEASURED_ROUNDS[callers], []
    run = controlled(curve, callers)
    for phase, agreement in enumerate(AGREEMENTS[callers]):
        first = callers * (phase * (WARM_UP_ROUNDS + measured) + WARM_UP_ROUNDS)
        last = first + callers * measured
        goodput = run.goodput(agreement, first, last)
        begin, end = callers * 15, callers * (15 + FIXED_ROUNDS[callers])
        goodputs = [each.goodput(agreement, begin, end) for each in fixed(curve, callers)]
        shares.append(goodput / max(goodputs))
        what = f"phase {phase}: {shares[-1]:.3f} of the best, {goodput / goodputs[0]:.3f} of plain"
        assert goodput >= LEAST_SHARE[callers] * max(goodputs), what
        assert goodput >= LEAST_OF_PLAIN[callers] * goodputs[0], what
        assert run.changes(first, last) < 0.1, what
    assert sum(shares) / len(shares) >= 0.95, shares
