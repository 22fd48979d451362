"""`python -m benchmarks.overload`: throughput, rejections, memory and recovery at four times the capacity."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from benchmarks.overload.measure import Figures, measure
from benchmarks.overload.plan import Plan
from benchmarks.overload.system import ROOT
from flyserve.cli.terminal import messages, output, reported_errors


def main(
    seconds: Annotated[float, typer.Option(min=5, help="Of overload.")] = 60.0,
    factor: Annotated[float, typer.Option(min=1, help="Of the capacity.")] = 4.0,
    folder: Annotated[
        Path, typer.Option("--output", file_okay=False, help="Where report and figures go.")
    ] = ROOT / "docs" / "benchmarks",
) -> None:
    """Overload one simulated target behind one router, and see what becomes of whom."""
    plan = Plan(overload_s=seconds, factor=factor)
    with reported_errors():
        figures = asyncio.run(measure(plan, lambda words: messages().print(words, markup=False)))
    folder.mkdir(parents=True, exist_ok=True)
    report = {"plan": asdict(plan), "figures": asdict(figures)}
    (folder / "overload.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (folder / "overload.md").write_text(_markdown(plan, figures), encoding="utf-8")
    output().print(_table(figures))


def _rows(figures: Figures) -> dict[str, str]:
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(figures.outcomes.items()))
    return {
        "peak, requests/s": f"{figures.peak_per_s:.1f}",
        "offered, requests/s": f"{figures.offered_per_s:.1f}",
        "finished in time, requests/s": f"{figures.admitted_per_s:.1f} ({figures.kept:.0%} of the peak)",
        "requests": outcomes,
        "rejected within, ms": f"{figures.rejection_p50_ms:.1f} (p50), {figures.rejection_p99_ms:.1f} (p99)",
        "router's memory, MB": f"{figures.memory_before_mb:.0f} before, {figures.memory_most_mb:.0f} at most",
        "machine's load average": " before, ".join(f"{load:.1f}" for load in figures.machine_load) + " after",
        "a new request as quick as at the peak after, s": f"{figures.recovery_s:.1f}",
    }


def _markdown(plan: Plan, figures: Figures) -> str:
    lines = [
        "# Overload",
        "",
        f"`python -m benchmarks.overload`: a router with {plan.places} places and a queue of {plan.queue}, in"
        f" front of one simulated target whose forwards take {plan.forward_s * 1e3:g} ms, each a process of"
        f" its own. The peak is what {plan.places} clients get that ask again as soon as they are answered."
        f" Then {plan.factor:g} times as many requests come for {plan.overload_s:g} s, whether or not anybody"
        f" answers, each with a deadline of {plan.deadline_s:g} s.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in _rows(figures).items()),
        "",
        "*Late* are requests that were let in and not finished by their deadlines.",
        "",
    ]
    return "\n".join(lines)


def _table(figures: Figures) -> Table:
    table = Table("", "", show_header=False, box=box.SIMPLE)
    for name, value in _rows(figures).items():
        table.add_row(name, value)
    return table


if __name__ == "__main__":
    typer.run(main)
