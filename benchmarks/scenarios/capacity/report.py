"""The figures of placements, of deployments by size, and of a router's CPU time; the report. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from statistics import median

from benchmarks.harness.client import Block
from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import line_chart
from benchmarks.harness.report import AROUND, TIMES, Figure, Report, Row, Table, make_rows
from benchmarks.harness.statistics import Goal, median_ratio, percentiles, spread
from benchmarks.scenarios.capacity.hardware import Replica
from benchmarks.scenarios.capacity.measure import Measured
from benchmarks.scenarios.capacity.plan import AGREEMENT, CO_LOCATED, FLY, LANGUAGE, PAUSE_S, PLAIN, Plan
from flyserve.bench.statistics import bootstrap, share

MOST_DISTORTION = 0.05
"""A figure is flagged if the CPU took more than this share of what a stream waited for."""
LIMIT_MS = 0.1
"""Goal for the CPU time of a router per emitted token, at a tau of 10."""
_TIER_GOAL, _SCALING_GOAL = 1.5, 0.9


@dataclass(frozen=True, slots=True)
class Found:
    """The results of one run: windows by number of clients, deployments, blocks by setting."""

    placements: dict[int, list[dict[str, Measured]]] = field(default_factory=dict)
    replicas: list[Measured] = field(default_factory=list)
    router: dict[str, list[Block]] = field(default_factory=dict)


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
    own, models = ceil(clients / plan.groups), plan.models(plan.shards)
    draft_s = plan.draft_length * models.drafter_model.forward_s(own, own)
    return draft_s, models.target_model.forward_s(own, own * (plan.draft_length + 1))


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


def _distortion(windows: Sequence[Measured], delay_s: float = 0.0) -> float:
    """Return the CPU's share; where the link has a delay, the time outside the services is no part of it."""
    return median(m.late + (0.0 if delay_s else abs(m.outside)) for m in windows)


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
    Figure("distortion", lambda p: _distortion(p.windows, p.delay_s), {"CPU's share": _flagged}),
)
Sized = tuple[Measured, Measured, Plan]
"""A deployment, and the smallest one under the same setting."""


def _scaling(compared: Sized) -> float | None:
    """Return tokens/s per target by those of the smallest deployment; None for another load per target."""
    (own, base), (shape, small) = compared[:2], (compared[0].deployment, compared[1].deployment)
    assert shape is not None and small is not None
    if shape.streams * small.targets != small.streams * shape.targets or shape.drafters != shape.targets:
        return None
    return share(own.tokens_per_s / shape.targets, base.tokens_per_s / small.targets)


def _gpu_s(compared: Sized) -> float:
    own, _, plan = compared
    assert own.deployment is not None
    drafters = 0 if own.window.setting == PLAIN else own.deployment.drafters
    return share(1000 * (own.deployment.targets * plan.shards + drafters), own.tokens_per_s)


SIZES: tuple[Figure[Sized], ...] = (
    Figure("setting", lambda c: c[0].window.setting, {"setting": "{}"}),
    Figure("deployment", lambda c: c[0].deployment),
    Figure("targets", lambda c: c[0].deployment.targets, {"targets": "{}"}),  # type: ignore[union-attr]
    Figure("drafters", lambda c: c[0].deployment.drafters, {"drafters": "{}"}),  # type: ignore[union-attr]
    Figure("streams", lambda c: c[0].deployment.streams, {"streams": "{}"}),  # type: ignore[union-attr]
    Figure("tokens_per_s", lambda c: c[0].tokens_per_s, {"tokens/s": "{:,.0f}"}),
    Figure("scaling", _scaling, {"by replica": "{:.2f}x"}),
    Figure(
        "inter_token",
        lambda c: percentiles([(gap_s / n / c[0].dilation, n) for gap_s, n in c[0].window.gaps]),
        {"inter-token, ms": "{}"},
    ),
    Figure("tau", lambda c: c[0].tau or None, {"tau": "{:.1f}"}),
    Figure("gpu_s", _gpu_s, {"GPU s by 1,000 tokens": "{:.2f}"}),
    Figure("late", lambda c: c[0].late),
    Figure("completed", lambda c: c[0].window.completed),
    Figure("distortion", lambda c: _distortion([c[0]]), {"CPU's share": _flagged}),
)


def size_rows(plan: Plan, measured: Sequence[Measured]) -> list[Row]:
    """Return the figures of every deployment and setting, compared with the smallest deployment."""
    base: dict[str, Measured] = {}
    for each in measured:
        base.setdefault(each.window.setting, each)
    return make_rows(SIZES, [(each, base[each.window.setting], plan) for each in measured])


def is_flagged(figures: Row) -> bool:
    """Return True if the CPU was too slow for this dilation: the figures say little about the deployment."""
    return bool(figures.distortion > MOST_DISTORTION)


_ROUTER: tuple[Figure[tuple[str, Sequence[Block]]], ...] = (
    Figure("setting", lambda c: c[0], {"setting": "{}"}),
    Figure("tau", lambda c: median(block.tau for block in c[1]) or None, {"tau": "{:.1f}"}),
    Figure(
        "cpu_ms",
        lambda c: bootstrap([block.cpu_ms for block in c[1]], median),
        {"CPU ms per token": "{.value:.4f}", "95% interval": "{0.low:.4f} to {0.high:.4f}"},
    ),
    Figure(
        "spread",
        lambda c: spread([block.cpu_ms for block in c[1]]),
        {"least to most": "{0.least:.4f} to {0.most:.4f}"},
    ),
)
PARAMETERS: tuple[Figure[Replica], ...] = (
    Figure("model", lambda r: r.model.name, {"model": "{}"}),
    Figure("gpus", lambda r: r.num_gpus, {"GPUs": "{}"}),
    Figure("base_ms", lambda r: 1e3 * r.base_s, {"a forward, ms": "{:.2f}"}),
    Figure("knee_rows", lambda r: r.knee_rows, {"knee, rows": "{}"}),
    Figure("row_us", lambda r: 1e6 * r.row_s, {"a row above, us": "{:.1f}"}),
    Figure("sequence_us", lambda r: 1e6 * r.sequence_s, {"KV of a sequence, us": "{:.1f}"}),
    Figure("kv_tokens", lambda r: r.kv_tokens, {"KV tokens": "{:,}"}),
)


def make_report(plan: Plan, machine: Machine, found: Found) -> Report:
    """Return the report of the parts that were measured."""
    rows = make_rows(FIGURES, _points(plan, found.placements))
    sizes = size_rows(plan, found.replicas)
    tier = sorted((row for row in rows if row.placement != CO_LOCATED), key=lambda row: row.ratio.value)
    lines = {
        name: [(row.clients, row.per_client) for row in rows if row.placement == name]
        for name in plan.placements
    }
    floors = ((name, *(served(line, floor) for floor in plan.floors)) for name, line in lines.items() if line)
    heads = ("placement", *(f"at {floor:g} tokens/s" for floor in plan.floors))
    title, models = "Tokens per second of a replica", plan.models(plan.shards)
    parameters = make_rows(PARAMETERS, (models.target, models.drafter, plan.models(1).drafter))
    return Report("capacity", machine, plan, figures=rows, sizes=sizes, blocks=found.router).fill(
        losing=Table.of("Where the tier loses", FIGURES, [row for row in tier if row.ratio.value < 1]),
        targets=list(_goals(tier, sizes, found.router)),
        pause_s=PAUSE_S,
        points=Table.of("All points", FIGURES, rows),
        floors=Table("Clients served", heads, tuple(floors)),
        language=LANGUAGE,
        agreement=AGREEMENT,
        gpu=models.target.gpu,
        parameters=Table.of("models", PARAMETERS, parameters),
        most_distortion=MOST_DISTORTION,
        svg=line_chart("Tokens/s per client", "clients", "tokens/s", lines, True) if rows else "",
        sized=Table.of("Replicas", SIZES, sizes),
        sizes_svg=line_chart(title, "target replicas", "tokens/s", _lines(sizes), True) if sizes else "",
        router=Table.of("A router's CPU time", _ROUTER, make_rows(_ROUTER, found.router.items())),
    )


def _points(plan: Plan, found: Mapping[int, list[dict[str, Measured]]]) -> Iterator[Point]:
    for clients, windows in sorted(found.items()):
        base = [each[CO_LOCATED] for each in windows]
        lockstep = lockstep_tokens_per_s(plan, clients, median(each.tau for each in base))
        for name, delay_s in plan.placements.items():
            own = [each[name] for each in windows]
            yield Point(name, clients, delay_s, own, base, closed_form(plan, clients), lockstep)


def _lines(sizes: Sequence[Row]) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in sizes:
        if row.scaling is not None:
            lines.setdefault(row.setting, []).append((row.targets, row.tokens_per_s / row.targets))
    return {name: sorted(points) for name, points in lines.items()}


def _goals(
    tier: Sequence[Row], sizes: Sequence[Row], router: Mapping[str, Sequence[Block]]
) -> Iterator[Goal]:
    if tier:
        for kind, row, limit in (("best", tier[-1], _TIER_GOAL), ("worst", tier[0], 1.0)):
            name = f"{kind} point, {row.clients} clients, {row.placement}: by co-located"
            yield Goal(name, limit, row.ratio)
    most = max((row.targets for row in sizes), default=0)
    for row in sizes:
        if row.targets == most:
            note = " (no verdict: the CPU was too slow)" if is_flagged(row) else ""
            ratio = bootstrap([row.scaling], lambda found: found[0])
            yield Goal(f"{row.setting}: {most} replicas, tokens/s by replica{note}", _SCALING_GOAL, ratio)
    if router:
        costs = [block.cpu_ms / LIMIT_MS for block in router[FLY]]
        tau = median(block.tau for block in router[FLY])
        name = f"a router's CPU time per token at tau {tau:.1f}, by {LIMIT_MS:g} ms"
        yield Goal(name, 1.0, bootstrap(costs, median), is_least=False)
