"""The figures of deployments by size, and the report. Pure."""

from collections.abc import Sequence

from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import line_chart
from benchmarks.harness.report import Figure, Report, Row, Table, make_rows
from benchmarks.harness.statistics import percentiles
from benchmarks.scenarios.capacity import hardware
from benchmarks.scenarios.capacity.hardware import Replica
from benchmarks.scenarios.capacity.measure import Measured
from benchmarks.scenarios.capacity.plan import AGREEMENT, LANGUAGE, PLAIN, Plan
from flyserve.bench.statistics import share

MOST_DISTORTION = 0.05
"""A figure is flagged if the CPU took more than this share of what a stream waited for."""
_SCALING_GOAL = 0.9
_SHOWN = ("targets", "tokens/s", "relative to the smallest", "inter-token, ms", "CPU's share")
Sized = tuple[Measured, Measured, Plan]
"""A deployment, and the smallest one under the same setting."""


def _scaling(compared: Sized) -> float | None:
    """Return tokens/s per target by those of the smallest deployment; None for another load per target."""
    own, base, _ = compared
    shape, small = own.deployment, base.deployment
    if shape.streams * small.targets != small.streams * shape.targets or shape.drafters != shape.targets:
        return None
    return share(own.tokens_per_s / shape.targets, base.tokens_per_s / small.targets)


def _gpu_s(compared: Sized) -> float:
    own, _, plan = compared
    drafters = 0 if own.window.setting == PLAIN else own.deployment.drafters
    return share(1000 * (own.deployment.targets * plan.shards + drafters), own.tokens_per_s)


def _flagged(distortion: float) -> str:
    return f"{distortion:.1%}{' !' if distortion > MOST_DISTORTION else ''}"


SIZES: tuple[Figure[Sized], ...] = (
    Figure("setting", lambda c: c[0].window.setting, {"setting": "{}"}),
    Figure("targets", lambda c: c[0].deployment.targets, {"targets": "{}"}),
    Figure("drafters", lambda c: c[0].deployment.drafters, {"drafters": "{}"}),
    Figure("streams", lambda c: c[0].deployment.streams, {"streams": "{}"}),
    Figure("tokens_per_s", lambda c: c[0].tokens_per_s, {"tokens/s": "{:,.0f}"}),
    Figure("scaling", _scaling, {"relative to the smallest": "{:.2f}x"}),
    Figure(
        "inter_token",
        lambda c: percentiles([(gap_s / n / c[0].dilation, n) for gap_s, n in c[0].window.gaps]),
        {"inter-token, ms": "{}"},
    ),
    Figure("tau", lambda c: c[0].tau or None, {"tau": "{:.1f}"}),
    Figure("gpu_s", _gpu_s, {"GPU s by 1,000 tokens": "{:.2f}"}),
    Figure("late", lambda c: c[0].late),
    Figure("completed", lambda c: c[0].window.completed),
    Figure("distortion", lambda c: c[0].late + abs(c[0].outside), {"CPU's share": _flagged}),
)
PARAMETERS: tuple[Figure[Replica], ...] = (
    Figure("model", lambda r: r.name, {"model": "{}"}),
    Figure("gpus", lambda r: r.num_gpus, {"GPUs": "{}"}),
    Figure("base_ms", lambda r: 1e3 * r.base_s, {"a forward, ms": "{:.2f}"}),
    Figure("knee_rows", lambda r: r.knee_rows, {"knee, rows": "{}"}),
    Figure("row_us", lambda r: 1e6 * r.row_s, {"a row above, us": "{:.1f}"}),
    Figure("sequence_us", lambda r: 1e6 * r.sequence_s, {"KV of a sequence, us": "{:.1f}"}),
    Figure("kv_tokens", lambda r: r.kv_tokens, {"KV tokens": "{:,}"}),
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


def make_report(plan: Plan, machine: Machine, measured: Sequence[Measured]) -> Report:
    """Return the report."""
    sizes = size_rows(plan, measured)
    chart = line_chart("Tokens per second of a replica", "target replicas", "tokens/s", _lines(sizes), True)
    return Report("capacity", machine, plan, sizes=sizes).fill(
        targets=_goals(sizes),
        sized=Table.of("Replicas", SIZES, sizes),
        shown=_SHOWN,
        svg=chart,
        language=LANGUAGE,
        agreement=AGREEMENT,
        gpu=hardware,
        parameters=Table.of("models", PARAMETERS, make_rows(PARAMETERS, (plan.target, plan.drafter))),
        most_distortion=MOST_DISTORTION,
    )


def _lines(sizes: Sequence[Row]) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in sizes:
        if row.scaling is not None:
            lines.setdefault(row.setting, []).append((row.targets, row.tokens_per_s / row.targets))
    return {name: sorted(points) for name, points in lines.items()}


def _goals(sizes: Sequence[Row]) -> Table:
    """Return the goals of the largest deployment; one window of each has no interval."""
    compared = [row for row in sizes if row.scaling is not None]
    most = max(row.targets for row in compared)
    lines = (_goal(row) for row in compared if row.targets == most)
    return Table("goals", ("goal", "limit", "measured", ""), tuple(lines))


def _goal(row: Row) -> tuple[str, ...]:
    verdict = "met" if row.scaling >= _SCALING_GOAL else "missed"
    if is_flagged(row):
        verdict = "no verdict: the CPU was too slow"
    name = f"{row.setting}: {row.targets} replicas, tokens/s of a replica"
    return name, f">= {_SCALING_GOAL:.2f}x", f"{row.scaling:.2f}x", verdict
