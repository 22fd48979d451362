"""The report of the simulated deployments and of a router's CPU time. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.harness.client import Block
from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import line_chart
from benchmarks.harness.report import Figure, Report, Row, Table, make_rows
from benchmarks.harness.statistics import Goal, spread
from benchmarks.scenarios.simulate.figures import FIGURES, MOST_DISTORTION, scaling_goals
from benchmarks.scenarios.simulate.hardware import Replica
from benchmarks.scenarios.simulate.plan import (
    AGREEMENT,
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
from fly.messages import Endpoint, Role, Snapshot
from flyserve.bench.statistics import bootstrap
from protos.wire.streams import snapshot_to_wire

LIMIT_MS = 0.1
"""Goal for the CPU time of a router per emitted token, at a tau of 10."""
_ROWS = (("part of a request", "parts", 99), ("package", "packages", 12), ("function", "functions", 25))
"""Tables of a profile: head, field, number of rows."""
_USE = 0.6
"""Share of a core that a router should use on average."""
_SHOWN = ("tokens/s", "by replica", "inter-token, ms", "GPU s by 1,000 tokens", "CPU's share")
_INTRODUCTION = f"""
Real routers, real gRPC over sockets and the real engine's scheduling run in front of simulated models. A
forward takes the time of its roofline, on a clock that is much slower than the machine's (dilated), so that
the CPU of this machine does not determine the figures. Targets and drafters share some processes, each with
its own port; routers share others. Each client sends one request after the other.

All times and rates are those of the simulated deployment: the measured ones, divided or multiplied by the
dilation. *CPU's share*: of all that streams waited for, the part that was neither the queue nor a forward of
a service, plus the time by which forwards overran. This part comes from the CPU; the dilation keeps it small.
Figures with more than {MOST_DISTORTION:.0%} are marked `!`: they say little about the deployment. The time
that a router and the wire take is real, shrinks with the dilation, and is in no figure.

*by replica*: tokens per second of a target replica, divided by that of the smallest deployment.
*inter-token*: time from token to token; tokens that arrive together share the wait. *first*: time to the
first token. *pause*: time between arrivals, however many tokens arrive. Waits are p50 / p95 / p99.
"""


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
    report = Report("simulate", machine, plan, **vars(found))
    shapes = {plan.deployment(targets) for targets in plan.sizes}
    sizes = _in_order([each for each in found.figures if each.deployment in shapes])
    report.introduction("A large deployment, simulated", _INTRODUCTION)
    report.goals([*scaling_goals(sizes), router_goal(found.blocks)])
    report.chart("replicas", _chart(sizes), "Tokens per second of a replica")
    _add_deployments(report, plan, found.figures, sizes)
    _add_parameters(report, plan, found.dilations)
    _add_router(report, plan, found.blocks, sizes)
    for setting, profile in found.profiles.items():
        _add_profile(report, setting, profile)
    return report


def _in_order(figures: Sequence[Row]) -> list[Row]:
    order = list(SETTINGS)
    return sorted(figures, key=lambda f: (order.index(f.setting), f.targets, f.drafters, f.streams))


def _add_deployments(report: Report, plan: Plan, figures: Sequence[Row], sizes: Sequence[Row]) -> None:
    whole = plan.deployment(plan.side_targets)
    side = [each for each in figures if each.targets == plan.side_targets]
    loads = [each for each in side if each.drafters == whole.drafters]
    lean = [each for each in side if each.setting != PLAIN and each.streams == whole.streams]

    def add(title: str, rows: Sequence[Row]) -> None:
        report.table(Table.of(title, FIGURES, _in_order(rows)), _SHOWN, title=True)

    add(f"Replicas, {plan.streams} streams each", sizes)
    if plan.fewer_streams:
        add(f"Streams, {plan.side_targets} replicas", loads)
    if plan.fewer_drafters:
        add(f"Drafters, {plan.side_targets} replicas", lean)


def _chart(sizes: Sequence[Row]) -> str:
    lines: dict[str, list[tuple[float, float]]] = {}
    for each in sizes:
        lines.setdefault(each.setting, []).append((each.targets, each.tokens_per_s / each.targets))
    return line_chart("Tokens per second of a replica", "target replicas", "tokens/s", lines, True)


_PARAMETERS: tuple[Figure[Replica], ...] = (
    Figure("model", lambda r: r.model.name, {"model": "{}"}),
    Figure("gpus", lambda r: r.num_gpus, {"GPUs": "{}"}),
    Figure("base_ms", lambda r: 1e3 * r.base_s, {"a forward, ms": "{:.2f}"}),
    Figure("knee_rows", lambda r: r.knee_rows, {"knee, rows": "{}"}),
    Figure("row_us", lambda r: 1e6 * r.row_s, {"a row above, us": "{:.1f}"}),
    Figure("sequence_us", lambda r: 1e6 * r.sequence_s, {"KV of a sequence, us": "{:.1f}"}),
    Figure("kv_tokens", lambda r: r.kv_tokens, {"KV tokens": "{:,}"}),
)


def _add_parameters(report: Report, plan: Plan, dilations: Dilations) -> None:
    models, (least, most) = plan.models, LANGUAGE.response_tokens
    gpu = models.target.gpu
    report.heading("What is simulated")
    report.text(f"""
A forward reads all weights once, and the KV of every sequence in it. Its rows cost nothing more up to the
knee, where their compute takes as long as reading the weights. The GPU, {gpu.name}, has {
        gpu.bandwidth / 1e12:g} TB/s and {
        gpu.flops / 1e12:g} dense bfloat16 TFLOPS by its data sheet, of which
{gpu.bandwidth_share:.0%} and {gpu.flops_share:.0%} are reached. A captured graph takes {1e3 * gpu.launch_s:g}
ms to launch, and each of two all-reduces in a layer of a shared model {1e6 * gpu.all_reduce_s:g} us.
{gpu.memory_share:.0%} of {gpu.memory / 1e9:g} GB hold weights and KV. These are assumptions: no GPU was
measured.
""")
    rows = make_rows(_PARAMETERS, (models.target, models.drafter))
    report.table(Table.of("simulated models", _PARAMETERS, rows))
    chosen = "as requested" if plan.dilation else "chosen by the CPU time of one replica"
    report.text(f"""
Requests have {plan.prompt_tokens} prompt tokens that no cache has, and get {least} to {most} new ones. The
context of a sequence is assumed to be {plan.context_tokens} tokens, most of them in the prefix cache: reading
its KV is counted, its prefill is not. A chunk of a prefill has at most {models.max_batch_tokens // 2} tokens.
The drafter agrees with the target at {AGREEMENT:.1%} of positions, which gives drafts of {DRAFT_LENGTH} a tau
of 10. It has no sub-drafter, and does not draft ahead.

Dilation: {dilations.largest:g} for the largest deployment, {dilations.smaller:g} for the others, which are
measured side by side; {chosen}. Windows: {plan.measure_s:g} simulated seconds after {plan.settle_s:g}.
""")


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


def _add_router(report: Report, plan: Plan, blocks: Sequence[Block], sizes: Sequence[Row]) -> None:
    report.heading("A router's CPU time, undilated")
    report.text(f"""
CPU time of the router's process, with metrics, by the kernel's clock. The same requests go to a router in
front of a target and a drafter whose forwards take no time, {plan.at_once} at a time. {plan.repeat} launches
of all processes, {plan.blocks} blocks of {plan.requests} requests in each; the median over blocks, and its
95% interval over resamples of them.
""")
    rows = make_rows(_ROUTER, [[b for b in blocks if b.setting == name] for name in ROUTER_SETTINGS])
    report.table(Table.of("A router's CPU time", _ROUTER, rows))
    report.text(f"""
Routers that the simulated deployments would need if each uses {_USE:.0%} of a core; their connections to
replicas, all together; and the size of the snapshot that the registry sends to each of them at every change:
""")
    needed = ("setting", "targets", "tokens/s", "routers", "connections of all", "snapshot, bytes")
    report.table(Table("routers needed", needed, tuple(_needed(blocks, sizes))))


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


def _add_profile(report: Report, setting: str, profile: Profile) -> None:
    report.heading(f"Where the time goes: {setting}", level=3)
    report.text(f"""
{profile.samples} samples by CPU time of the whole process, at another router ({profile.cpu_ms:.4f} ms per
token while it was sampled). A sample counts for the Python function that runs when C code returns to the
interpreter, so some of the time of gRPC and the event loop is attributed to functions that they call
(`deserialize`, `read`).
""")
    for head, field, count in _ROWS:
        rows = tuple((_code(name), f"{part:.1%}") for name, part in getattr(profile, field)[:count])
        report.verbatim([Table("", (head, "share"), rows).markdown()])


def _code(name: str) -> str:
    return name if " " in name else f"`{name}`"
