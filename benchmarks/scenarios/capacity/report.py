"""The report of the comparison. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from statistics import median

from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import line_chart
from benchmarks.harness.report import AROUND, TIMES, Figure, Report, Row, Table, make_rows
from benchmarks.harness.statistics import Goal, median_ratio
from benchmarks.scenarios.capacity.plan import CO_LOCATED, PAUSE_S, Found, Measured, Plan
from benchmarks.scenarios.simulate.figures import MOST_DISTORTION
from benchmarks.scenarios.simulate.plan import AGREEMENT, LANGUAGE
from benchmarks.scenarios.simulate.report import PARAMETERS, table_of
from flyserve.bench.statistics import share

_GOAL = 1.5


@dataclass(frozen=True, slots=True)
class Point:
    """One placement with one number of clients: its windows, and those of the co-located pairs beside them.

    Attributes:
        delay_s: Delay of its links, each way.
        closed_form: Speed-up of a target that never waits for its drafter.
        lockstep: Tokens/s of co-located pairs that lose no time between drafts and verifications.
    """

    placement: str
    clients: int
    delay_s: float
    windows: Sequence[Measured]
    base: Sequence[Measured]
    closed_form: float
    lockstep: float


def closed_form(plan: Plan, clients: int) -> float:
    """Return 1 + K t_draft / t_verify, with forwards of the sequences that a co-located pair has."""
    draft_s, verify_s = _round_s(plan, clients)
    return 1 + draft_s / verify_s


def lockstep_tokens_per_s(plan: Plan, clients: int, tau: float) -> float:
    """Return the tokens/s of pairs whose sequences are all drafted together, then all verified together."""
    return clients * tau / sum(_round_s(plan, clients))


def _round_s(plan: Plan, clients: int) -> tuple[float, float]:
    """Return the time of a draft and of a verification of all sequences that a co-located pair has."""
    own, target, drafter = ceil(clients / plan.groups), plan.models.target_model, plan.models.drafter_model
    draft_s = plan.draft_length * drafter.forward_s(own, own)
    return draft_s, target.forward_s(own, own * (plan.draft_length + 1))


def served(speeds: Sequence[tuple[int, float]], floor: float) -> str:
    """Return how many clients have `floor` tokens/s each; between two measured numbers, by a straight line.

    Args:
        speeds: Tokens/s per client by number of clients, in ascending order.
        floor: Least tokens/s.
    """
    if speeds[0][1] < floor:
        return f"less than {speeds[0][0]}"
    for (clients, speed), (more, slower) in pairwise(speeds):
        if slower < floor:
            return f"{clients + (more - clients) * (speed - floor) / (speed - slower):.0f}"
    return f"at least {speeds[-1][0]}"


def _distortion(point: Point) -> float:
    """Return the CPU's share; where the link has a delay, the time outside the services is no part of it."""
    return median(m.late + (0.0 if point.delay_s else max(0.0, m.outside)) for m in point.windows)


def _flagged(distortion: float) -> str:
    return f"{distortion:.1%}{' !' if distortion > MOST_DISTORTION else ''}"


def _speed(windows: Sequence[Measured]) -> float:
    return median(each.tokens_per_s for each in windows)


FIGURES: tuple[Figure[Point], ...] = (
    Figure("clients", lambda p: p.clients, {"clients": "{}"}),
    Figure("placement", lambda p: p.placement, {"placement": "{}"}),
    Figure("per_client", lambda p: _speed(p.windows) / p.clients, {"tokens/s per client": "{:.0f}"}),
    Figure("tokens_per_s", lambda p: _speed(p.windows), {"tokens/s": "{:,.0f}"}),
    Figure(
        "ratio",
        lambda p: median_ratio([m.tokens_per_s for m in p.windows], [m.tokens_per_s for m in p.base]),
        {"by co-located": TIMES, "95% interval": AROUND},
    ),
    Figure("by_lockstep", lambda p: share(_speed(p.windows), p.lockstep), {"by lockstep": "{:.2f}x"}),
    Figure("closed_form", lambda p: p.closed_form, {"closed form": "{:.2f}x"}),
    Figure("tau", lambda p: median(m.tau for m in p.windows), {"tau": "{:.1f}"}),
    Figure("distortion", _distortion, {"CPU's share": _flagged}),
)


def make_report(plan: Plan, machine: Machine, found: Found) -> Report:
    """Return the report."""
    points = (
        Point(
            name,
            clients,
            delay_s,
            windows=[each[name] for each in windows],
            base=[each[CO_LOCATED] for each in windows],
            closed_form=closed_form(plan, clients),
            lockstep=lockstep_tokens_per_s(plan, clients, tau),
        )
        for clients, windows in sorted(found.items())
        for tau in (median(each[CO_LOCATED].tau for each in windows),)
        for name, delay_s in plan.placements.items()
    )
    rows = make_rows(FIGURES, points)
    tier = sorted((row for row in rows if row.placement != CO_LOCATED), key=lambda row: row.ratio.value)
    lines = {
        name: [(row.clients, row.per_client) for row in rows if row.placement == name]
        for name in plan.placements
    }
    floors = Table(
        "Clients served",
        ("placement", *(f"at {floor:g} tokens/s" for floor in plan.floors)),
        tuple((name, *(served(line, floor) for floor in plan.floors)) for name, line in lines.items()),
    )
    return Report("capacity", machine, plan, figures=rows, windows=found).fill(
        losing=Table.of("Where the tier loses", FIGURES, [row for row in tier if row.ratio.value < 1]),
        targets=[_goal("best", tier[-1], _GOAL), _goal("worst", tier[0], 1.0)],
        pause_s=PAUSE_S,
        points=Table.of("All points", FIGURES, rows),
        floors=floors,
        language=LANGUAGE,
        agreement=AGREEMENT,
        parameters=table_of("models", PARAMETERS, (plan.models.target, plan.models.drafter)),
        most_distortion=MOST_DISTORTION,
        svg=line_chart("Tokens/s per client", "clients", "tokens/s", lines, is_logarithmic=True),
    )


def _goal(kind: str, row: Row, limit: float) -> Goal:
    return Goal(f"{kind} point, {row.clients} clients, {row.placement}: by co-located", limit, row.ratio)
