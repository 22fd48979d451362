"""The report of the simulated deployments and of a router's CPU time. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.harness.client import Block
from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import line_chart
from benchmarks.harness.report import Columns, Report, Table, around, times, waits_ms
from benchmarks.harness.statistics import Goal
from benchmarks.scenarios.simulate.figures import MOST_DISTORTION, Figures, scaling, scaling_goals
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
from benchmarks.scenarios.simulate.profile import Profile
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


@dataclass(frozen=True, slots=True)
class Found:
    """The results of one run.

    Attributes:
        figures: Figures of every deployment and setting.
        blocks: Blocks of requests to a router that is not dilated.
        profiles: Profiles of that router, by setting.
    """

    dilations: Dilations
    figures: Sequence[Figures]
    blocks: Sequence[Block]
    profiles: Mapping[str, Profile]


def make_report(machine: Machine, plan: Plan, found: Found) -> Report:
    """Return the report."""
    report = Report(
        "simulate",
        machine,
        plan,
        dilations=found.dilations,
        figures=found.figures,
        blocks=found.blocks,
        profiles=found.profiles,
    )
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


def _in_order(figures: Sequence[Figures]) -> list[Figures]:
    def key(each: Figures) -> tuple[int, int, int, int]:
        shape = each.deployment
        return list(SETTINGS).index(each.setting), shape.targets, shape.drafters, shape.streams

    return sorted(figures, key=key)


def _add_deployments(
    report: Report, plan: Plan, figures: Sequence[Figures], sizes: Sequence[Figures]
) -> None:
    whole = plan.deployment(plan.side_targets)
    side = [each for each in figures if each.deployment.targets == plan.side_targets]
    loads = [each for each in side if each.deployment.drafters == whole.drafters]
    lean = [each for each in side if each.setting != PLAIN and each.deployment.streams == whole.streams]
    least = min(each.deployment.targets for each in sizes)
    base = {each.setting: each for each in sizes if each.deployment.targets == least}
    columns = _deployment_columns(base)

    def add(title: str, rows: Sequence[Figures]) -> None:
        report.table(Table.of(title, columns, _in_order(rows)), _SHOWN, title=True)

    add(f"Replicas, {plan.streams} streams each", sizes)
    if plan.fewer_streams:
        add(f"Streams, {plan.side_targets} replicas", loads)
    if plan.fewer_drafters:
        add(f"Drafters, {plan.side_targets} replicas", lean)


def _deployment_columns(base: Mapping[str, Figures]) -> Columns[Figures]:
    return {
        "setting": lambda f: f.setting,
        "targets": lambda f: str(f.deployment.targets),
        "drafters": lambda f: str(f.deployment.drafters),
        "routers": lambda f: str(f.deployment.routers),
        "streams": lambda f: str(f.deployment.streams),
        "tokens/s": lambda f: f"{f.tokens_per_s:,.0f}",
        "by replica": lambda f: times(scaling(f, base[f.setting]).value) if f.setting in base else "-",
        "first, ms": lambda f: waits_ms(f.first),
        "inter-token, ms": lambda f: waits_ms(f.inter_token),
        "pause, ms": lambda f: waits_ms(f.pause),
        "tau": lambda f: f"{f.tau:.1f}" if f.tau else "-",
        "draft": lambda f: f"{f.draft_length:.1f}",
        "GPUs": lambda f: str(f.gpus),
        "GPU s by 1,000 tokens": lambda f: f"{f.gpu_s:.2f}",
        "CPU's share": lambda f: f"{f.distortion:.1%}{' !' if f.is_flagged else ''}",
    }


def _chart(sizes: Sequence[Figures]) -> str:
    lines: dict[str, list[tuple[float, float]]] = {}
    for each in sizes:
        targets = each.deployment.targets
        lines.setdefault(each.setting, []).append((targets, each.tokens_per_s / targets))
    return line_chart("Tokens per second of a replica", "target replicas", "tokens/s", lines, True)


_PARAMETERS: Columns[Replica] = {
    "model": lambda r: r.model.name,
    "GPUs": lambda r: str(r.num_gpus),
    "a forward, ms": lambda r: f"{1e3 * r.base_s:.2f}",
    "knee, rows": lambda r: str(r.knee_rows),
    "a row above, us": lambda r: f"{1e6 * r.row_s:.1f}",
    "KV of a sequence, us": lambda r: f"{1e6 * r.sequence_s:.1f}",
    "KV tokens": lambda r: f"{r.kv_tokens:,}",
}


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
    report.table(Table.of("simulated models", _PARAMETERS, (models.target, models.drafter)))
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
    ratios = [block.cpu_ms / LIMIT_MS for block in blocks if block.setting == FLY]
    name = f"a router's CPU time per token at tau {_tau(blocks, FLY):.1f}, by {LIMIT_MS:g} ms"
    return Goal(name, 1.0, bootstrap(ratios, median), is_least=False)


def _tau(blocks: Sequence[Block], setting: str) -> float:
    return median(block.tau for block in blocks if block.setting == setting)


def _add_router(report: Report, plan: Plan, blocks: Sequence[Block], sizes: Sequence[Figures]) -> None:
    report.heading("A router's CPU time, undilated")
    report.text(f"""
CPU time of the router's process, with metrics, by the kernel's clock. The same requests go to a router in
front of a target and a drafter whose forwards take no time, {plan.at_once} at a time. {plan.repeat} launches
of all processes, {plan.blocks} blocks of {plan.requests} requests in each; the median over blocks, and its
95% interval over resamples of them.
""")
    heads = (
        "setting",
        "tau",
        "CPU ms per token",
        "95% interval",
        "least to most",
        "CPU ms per round",
        "tokens/s",
    )
    rows = tuple(_router_row(blocks, setting) for setting in ROUTER_SETTINGS)
    report.table(Table("A router's CPU time", heads, rows))
    report.text(f"""
Routers that the simulated deployments would need if each uses {_USE:.0%} of a core; their connections to
replicas, all together; and the size of the snapshot that the registry sends to each of them at every change:
""")
    needed = ("setting", "targets", "tokens/s", "routers", "connections of all", "snapshot, bytes")
    report.table(Table("routers needed", needed, tuple(_needed(blocks, sizes))))


def _router_row(blocks: Sequence[Block], setting: str) -> tuple[str, ...]:
    own = [block for block in blocks if block.setting == setting]
    costs, tau = [block.cpu_ms for block in own], _tau(blocks, setting)
    cost = bootstrap(costs, median)
    per_round = median(block.cpu_ms * block.tokens / block.rounds for block in own)
    return (
        setting,
        f"{tau:.1f}" if tau else "-",
        f"{cost.value:.4f}",
        around(cost, ".4f"),
        f"{min(costs):.4f} to {max(costs):.4f}",
        f"{per_round:.3f}",
        f"{1e3 / cost.value:,.0f}",
    )


def _needed(blocks: Sequence[Block], sizes: Sequence[Figures]) -> Iterator[tuple[str, ...]]:
    for each in sizes:
        costs = [block.cpu_ms for block in blocks if block.setting == each.setting]
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
