"""The report as Markdown, with all figures as JSON."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.machine import Machine
from benchmarks.telemetry.measure import Cost, Plan

LIMIT = 1.1
"""What telemetry may cost a router: its CPU time per token, with by without."""

_INTRODUCTION = f"""\
# What telemetry costs a router

CPU time of the router's process per emitted token, client streams included: the kernel's clock of the
process, so that every thread counts, those of metrics and of the exporter among them. One router per setting,
all in front of the same simulated target and drafter, whose forwards take no time; blocks of the same
requests to one router after the other, in an order that rotates. A block ends once it has been scraped and
its spans have left (batches leave after 0.2 s here, not after 5). The first block of each router does not
count. Ratios are to *off* in the same repetition: their median, and its 95% interval over resamples of the
repetitions. *off, once more* is another router without telemetry: what the comparison itself is good for. The
aim is at most {LIMIT:g}x.

In mode `plain` a round emits one token: the dearest case for whatever is recorded per round.
"""


def write_report(costs: Sequence[Cost], plan: Plan, machine: Machine, num_spans: int, folder: Path) -> Path:
    """Writes `telemetry.md` and `telemetry.json` into a folder; the Markdown's path."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {
        "machine": asdict(machine),
        "plan": asdict(plan),
        "spans": num_spans,
        "costs": [asdict(cost) for cost in costs],
    }
    (folder / "telemetry.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    path = folder / "telemetry.md"
    path.write_text("\n".join(_lines(costs, plan, machine, num_spans)), encoding="utf-8")
    return path


def _lines(costs: Sequence[Cost], plan: Plan, machine: Machine, num_spans: int) -> Iterator[str]:
    yield _INTRODUCTION
    yield f"Machine: {machine.describe()}\n"
    yield (
        f"{plan.launches} launches of all processes, {plan.repetitions} blocks of each router in each,"
        f" {plan.requests} requests a block, {plan.at_once} at once,"
        f" {plan.new_tokens} tokens each. The collector got {num_spans} spans.\n"
    )
    yield "| mode | telemetry | CPU us per token | by off (95% interval) |"
    yield "|---|---|---|---|"
    for cost in costs:
        ratio = cost.ratio
        yield (
            f"| {cost.mode} | {cost.setting} | {cost.cpu_us:.1f} |"
            f" {ratio.value:.3f} ({ratio.low:.3f}-{ratio.high:.3f}) |"
        )
    yield ""
