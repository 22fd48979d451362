"""The report as tables for the terminal, Markdown, JSON and charts."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.bars import Bar, bars_table
from benchmarks.load.figures import Percentiles
from benchmarks.machine import Machine
from benchmarks.prose import wrapped
from benchmarks.simulate.figures import MOST_DISTORTION, Figures, scaling, scaling_bars
from benchmarks.simulate.hardware import Replica
from benchmarks.simulate.plan import AGREEMENT, DRAFT_LENGTH, LANGUAGE, PLAIN, SETTINGS, Plan
from benchmarks.simulate.router_report import router_bar, router_lines, router_table
from benchmarks.simulate.runner import Found
from benchmarks.svg import line_chart
from benchmarks.text_table import TextTable

_STEM = "simulate"
_NARROW = ("tokens/s", "by replica", "inter-token, ms", "GPU s by 1,000 tokens", "CPU's share")

_INTRODUCTION = f"""\
# A large deployment, simulated

Real routers, real gRPC over sockets and the real engine's scheduling, in front of simulated models: a forward
takes the time that its roofline says, on a clock that is so many times slower than the machine's (dilated)
that the CPU of this machine does not decide the figures. Targets and drafters share some processes, each with
a port of its own; routers share others. Each client asks for one response after the other.

All times and rates are those of the simulated deployment: what was measured, by the dilation. *CPU's share*:
of all that streams waited for, what was neither the queue nor a forward of a service, and by how much
forwards
overran: the processor's doing, which the dilation is to keep small. Figures with more than
{MOST_DISTORTION:.0%} are marked `!`: they say little of the deployment. The time that a router and the
wire take
is real, shrinks with the dilation, and is in no figure.

*by replica*: tokens per second of a target replica, by that of the smallest deployment. *inter-token*: from
token to token; tokens that come together share the wait for them. *first*: until the first token. *pause*:
between arrivals, however many tokens come. Waits are p50 / p95 / p99.
"""


def make_tables(found: Found) -> Iterator[TextTable]:
    """For the terminal."""
    for table in _deployment_tables(found):
        yield table.only(_NARROW)
    yield router_table(found.blocks)
    yield bars_table(_bars(found))


def write_report(found: Found, machine: Machine, folder: Path) -> Path:
    """Writes everything into a folder; the Markdown's path."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {"machine": asdict(machine), **asdict(found), "bars": [asdict(bar) for bar in _bars(found)]}
    (folder / f"{_STEM}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    for name, chart in _charts(found).items():
        (folder / name).write_text(chart, encoding="utf-8")
    path = folder / f"{_STEM}.md"
    path.write_text("\n".join(_lines(found, machine)), encoding="utf-8")
    return path


def _lines(found: Found, machine: Machine) -> Iterator[str]:
    yield wrapped(_INTRODUCTION).lstrip()
    yield f"Machine: {machine.describe()}\n"
    yield from bars_table(_bars(found)).markdown()
    yield from (f"\n![{name}]({name})" for name in _charts(found))
    for table in _deployment_tables(found):
        yield f"\n## {table.title}\n"
        yield from table.markdown()
    yield "\n## What is simulated\n"
    yield from _parameters(found)
    yield from router_lines(found, _sizes(found))


def _bars(found: Found) -> list[Bar]:
    return [*scaling_bars(_sizes(found)), router_bar(found.blocks)]


def _sizes(found: Found) -> list[Figures]:
    """Of the deployments that differ in size alone, setting by setting."""
    shapes = {found.plan.deployment(targets) for targets in found.plan.sizes}
    return _in_order([each for each in found.figures if each.deployment in shapes])


def _in_order(figures: Sequence[Figures]) -> list[Figures]:
    order = list(SETTINGS)
    return sorted(figures, key=lambda each: (order.index(each.setting), _size(each)))


def _deployment_tables(found: Found) -> Iterator[TextTable]:
    sizes, plan = _sizes(found), found.plan
    yield _table(f"Replicas, {plan.streams} streams each", sizes, sizes)
    whole = plan.deployment(plan.side_targets)
    side = [each for each in found.figures if each.deployment.targets == plan.side_targets]
    loads = [each for each in side if each.deployment.drafters == whole.drafters]
    drafting = [each for each in side if each.setting != PLAIN]
    lean = [each for each in drafting if each.deployment.streams == whole.streams]
    if plan.fewer_streams:
        yield _table(f"Streams, {plan.side_targets} replicas", loads, sizes)
    if plan.fewer_drafters:
        yield _table(f"Drafters, {plan.side_targets} replicas", lean, sizes)


def _table(title: str, figures: Sequence[Figures], sizes: Sequence[Figures]) -> TextTable:
    heads = (
        *("setting", "targets", "drafters", "routers", "streams", "tokens/s", "by replica", "first, ms"),
        *("inter-token, ms", "pause, ms", "tau", "draft", "GPUs", "GPU s by 1,000 tokens", "CPU's share"),
    )
    return TextTable(title, heads, tuple(_row(each, sizes) for each in _in_order(figures)))


def _size(figures: Figures) -> tuple[int, int, int]:
    shape = figures.deployment
    return shape.targets, shape.drafters, shape.streams


def _row(figures: Figures, sizes: Sequence[Figures]) -> tuple[str, ...]:
    shape = figures.deployment
    least = min(each.deployment.targets for each in sizes)
    base = [e for e in sizes if e.deployment.targets == least and e.setting == figures.setting]
    return (
        figures.setting,
        *(str(number) for number in (shape.targets, shape.drafters, shape.routers, shape.streams)),
        f"{figures.tokens_per_s:,.0f}",
        f"{scaling(figures, base[0]).value:.2f}x" if base else "-",
        *(_waits(wait) for wait in (figures.first, figures.inter_token, figures.pause)),
        f"{figures.tau:.1f}" if figures.tau else "-",
        f"{figures.draft_length:.1f}",
        str(figures.gpus),
        f"{figures.gpu_s:.2f}",
        f"{figures.distortion:.1%}{' !' if figures.is_flagged else ''}",
    )


def _waits(waits: Percentiles | None) -> str:
    if waits is None:
        return "-"
    return " / ".join(f"{1e3 * seconds:.1f}" for seconds in (waits.p50, waits.p95, waits.p99))


def _charts(found: Found) -> dict[str, str]:
    sizes = _sizes(found)
    rates = {
        setting: sorted(
            (e.deployment.targets, e.tokens_per_s / e.deployment.targets)
            for e in sizes
            if e.setting == setting
        )
        for setting in SETTINGS
    }
    lines = {setting: points for setting, points in rates.items() if points}
    chart = line_chart("Tokens per second of a replica", "target replicas", "tokens/s", lines, True)
    return {f"{_STEM}-replicas.svg": chart}


def _parameters(found: Found) -> Iterator[str]:
    plan, models = found.plan, found.plan.models
    gpu, (least, most) = models.target.gpu, LANGUAGE.response_tokens
    yield wrapped(f"""
A forward reads all weights once, and the KV of every sequence in it; its rows cost nothing more up to the
knee, where their compute takes as long as reading the weights. The GPU, {gpu.name}, has
{gpu.bandwidth / 1e12:g} TB/s and {gpu.flops / 1e12:g} dense bfloat16 TFLOPS by its data sheet, of which
{gpu.bandwidth_share:.0%} and {gpu.flops_share:.0%} are reached; a captured graph takes
{1e3 * gpu.launch_s:g} ms to launch, and each of two all-reduces in a layer of a shared model
{1e6 * gpu.all_reduce_s:g} us. {gpu.memory_share:.0%} of {gpu.memory / 1e9:g} GB hold weights and KV.
These are assumptions: no GPU was measured.
""")
    replicas = (models.target, models.drafter)
    yield from TextTable("", _PARAMETER_HEADS, tuple(map(_parameter_row, replicas))).markdown()
    yield wrapped(f"""
Requests have {plan.prompt_tokens} prompt tokens that no cache knows, and get {least} to {most} new ones.
The context of a sequence is taken to be {models.target.context_tokens} tokens, most of them found in the
prefix cache: reading its KV is paid for, its prefill is not. A chunk of a prefill has at most
{models.max_batch_tokens // 2} tokens. The drafter agrees with the target at {AGREEMENT:.1%} of positions,
which gives drafts of {DRAFT_LENGTH} a tau of 10. It has no sub-drafter, and does not draft ahead.

Dilation: {found.dilations.largest:g} for the largest deployment, {found.dilations.smaller:g} for the
others, which are measured side by side; {_chosen(plan)}. Windows: {plan.measure_s:g} simulated seconds
after {plan.settle_s:g}.
""")


def _chosen(plan: Plan) -> str:
    return "as it was asked for" if plan.dilation else "chosen by what one replica takes of the CPU"


_PARAMETER_HEADS = (
    "model",
    "GPUs",
    "a forward, ms",
    "knee, rows",
    "a row above, us",
    "KV of a sequence, us",
    "KV tokens",
)


def _parameter_row(replica: Replica) -> tuple[str, ...]:
    return (
        replica.model.name,
        str(replica.num_gpus),
        f"{1e3 * replica.base_s:.2f}",
        str(replica.knee_rows),
        f"{1e6 * replica.row_s:.1f}",
        f"{1e6 * replica.sequence_s:.1f}",
        f"{replica.kv_tokens:,}",
    )
