"""The report of the simulated deployments and of a router's CPU time. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from benchmarks.harness.client import Block
from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import line_chart
from benchmarks.harness.report import Figure, Report, Row, Table, make_rows
from benchmarks.harness.statistics import Goal, spread
from benchmarks.scenarios.simulate.figures import FIGURES, MOST_DISTORTION, scaling_goals
from benchmarks.scenarios.simulate.hardware import Replica
from benchmarks.scenarios.simulate.plan import (
    AGREEMENT,
    AMPLE,
    DRAFT_LENGTH,
    FLY,
    LANGUAGE,
    PLAIN,
    ROUTER_SETTINGS,
    SETTINGS,
    Deployment,
    Dilations,
    Plan,
)
from benchmarks.scenarios.simulate.router import Profile
from fly.endpoints import Endpoint, Snapshot
from fly.messages import Role
from flyserve.bench.statistics import bootstrap
from protos.wire.streams import snapshot_to_wire

LIMIT_MS = 0.1
"""Goal for the CPU time of a router per emitted token, at a tau of 10."""
_NEEDED = ("setting", "targets", "tokens/s", "routers", "connections of all", "snapshot, bytes")
_USE = 0.6
"""Share of a core that a router should use on average."""
T = TypeVar("T")
_SHOWN = ("tokens/s", "by replica", "inter-token, ms", "GPU s by 1,000 tokens", "CPU's share")


@dataclass(frozen=True)
class Found:
    """The results of one run.

    Attributes:
        figures: Figures of every deployment and setting.
        blocks: Blocks of requests to a router that is not dilated.
        profiles: Profiles of that router, by setting.
    """

    dilations: Dilations
    figures: Sequence[Row]
    blocks: Sequence[Block]
    profiles: Mapping[str, Profile]


def make_report(machine: Machine, plan: Plan, found: Found) -> Report:
    """Return the report."""
    shapes = {plan.deployment(targets) for targets in plan.sizes}
    sizes = _in_order([each for each in found.figures if each.deployment in shapes])
    models, blocks = plan.models, found.blocks
    measured = [[block for block in blocks if block.setting == name] for name in ROUTER_SETTINGS]
    return Report("simulate", machine, plan, **vars(found)).fill(
        most_distortion=MOST_DISTORTION,
        targets=[*scaling_goals(sizes), router_goal(blocks)],
        svg=_chart(sizes),
        deployments=list(_deployments(plan, found.figures, sizes)),
        shown=_SHOWN,
        gpu=models.target.gpu,
        parameters=table_of("simulated models", PARAMETERS, (models.target, models.drafter)),
        language=LANGUAGE,
        agreement=AGREEMENT,
        draft_length=DRAFT_LENGTH,
        router=table_of("A router's CPU time", _ROUTER, measured),
        use=_USE,
        needed=Table("routers needed", _NEEDED, tuple(_needed(blocks, sizes))),
    )


def table_of(title: str, figures: Sequence[Figure[T]], items: Sequence[T]) -> Table:
    """Return a table with a row for each item."""
    return Table.of(title, figures, make_rows(figures, items))


def _in_order(figures: Sequence[Row]) -> list[Row]:
    order = list(SETTINGS)
    return sorted(figures, key=lambda f: (order.index(f.setting), f.targets, f.drafters, f.streams))


def _deployments(plan: Plan, figures: Sequence[Row], sizes: Sequence[Row]) -> Iterator[Table]:
    whole = plan.deployment(plan.side_targets)
    every = [each for each in figures if each.targets == plan.side_targets]
    side = [each for each in every if each.scarce == AMPLE]
    yield Table.of(f"Replicas, {plan.streams} streams each", FIGURES, sizes)
    if plan.fewer_streams:
        loads = [each for each in side if each.drafters == whole.drafters]
        yield Table.of(f"Streams, {plan.side_targets} replicas", FIGURES, _in_order(loads))
    if plan.fewer_drafters:
        lean = [each for each in side if each.setting != PLAIN and each.streams == whole.streams]
        yield Table.of(f"Drafters, {plan.side_targets} replicas", FIGURES, _in_order(lean))
    if plan.scarce:
        pressed = [
            each for each in every if each.streams == whole.streams and each.drafters == whole.drafters
        ]
        title = f"Too little for all streams, {plan.side_targets} replicas"
        yield Table.of(title, (_SCARCE, *FIGURES), _in_order(pressed))


_SCARCE: Figure[Row] = Figure("scarce", lambda f: f.scarce, {"too little": "{}"})


def _chart(sizes: Sequence[Row]) -> str:
    lines: dict[str, list[tuple[float, float]]] = {}
    for each in sizes:
        lines.setdefault(each.setting, []).append((each.targets, each.tokens_per_s / each.targets))
    return line_chart("Tokens per second of a replica", "target replicas", "tokens/s", lines, True)


PARAMETERS: tuple[Figure[Replica], ...] = (
    Figure("model", lambda r: r.model.name, {"model": "{}"}),
    Figure("gpus", lambda r: r.num_gpus, {"GPUs": "{}"}),
    Figure("base_ms", lambda r: 1e3 * r.base_s, {"a forward, ms": "{:.2f}"}),
    Figure("knee_rows", lambda r: r.knee_rows, {"knee, rows": "{}"}),
    Figure("row_us", lambda r: 1e6 * r.row_s, {"a row above, us": "{:.1f}"}),
    Figure("sequence_us", lambda r: 1e6 * r.sequence_s, {"KV of a sequence, us": "{:.1f}"}),
    Figure("kv_tokens", lambda r: r.kv_tokens, {"KV tokens": "{:,}"}),
)


def router_goal(blocks: Sequence[Block]) -> Goal:
    """Return the goal for FLy's tokens."""
    own = [block for block in blocks if block.setting == FLY]
    tau = median(block.tau for block in own)
    name = f"a router's CPU time per token at tau {tau:.1f}, by {LIMIT_MS:g} ms"
    return Goal(name, 1.0, bootstrap([cost / LIMIT_MS for cost in _costs(own)], median), is_least=False)


def _costs(blocks: Sequence[Block]) -> list[float]:
    return [block.cpu_ms for block in blocks]


_ROUTER: tuple[Figure[Sequence[Block]], ...] = (
    Figure("setting", lambda own: own[0].setting, {"setting": "{}"}),
    Figure("tau", lambda own: median(block.tau for block in own) or None, {"tau": "{:.1f}"}),
    Figure(
        "cpu_ms",
        lambda own: bootstrap(_costs(own), median),
        {"CPU ms per token": "{.value:.4f}", "95% interval": "{0.low:.4f} to {0.high:.4f}"},
    ),
    Figure("spread", lambda own: spread(_costs(own)), {"least to most": "{0.least:.4f} to {0.most:.4f}"}),
    Figure(
        "round_ms",
        lambda own: median(block.cpu_ms * block.tokens / block.rounds for block in own),
        {"CPU ms per round": "{:.3f}"},
    ),
    Figure("tokens_per_s", lambda own: 1e3 / median(_costs(own)), {"tokens/s": "{:,.0f}"}),
)
"""The figures of a router under one setting, from its blocks."""


def _needed(blocks: Sequence[Block], sizes: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    for each in sizes:
        costs = _costs([block for block in blocks if block.setting == each.setting])
        if costs:
            shape = each.deployment
            routers = max(1, math.ceil(each.tokens_per_s * median(costs) / 1e3 / _USE))
            connections = routers * (shape.targets + shape.drafters)
            numbers = (each.tokens_per_s, routers, connections, _snapshot_bytes(shape))
            yield (each.setting, str(shape.targets), *(f"{number:,.0f}" for number in numbers))


def _snapshot_bytes(shape: Deployment) -> int:
    """Return the size of the registry's snapshot of this deployment."""
    endpoints = (
        Endpoint(role, f"10.0.{number // 256}.{number % 256}:50100", f"{role.value}-{number}", 1)
        for role, count in ((Role.TARGET, shape.targets), (Role.DRAFTER, shape.drafters))
        for number in range(count)
    )
    return snapshot_to_wire(Snapshot(1, tuple(endpoints))).ByteSize()
