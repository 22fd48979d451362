"""`python -m benchmarks.soak`: half an hour of mixed load, and what it leaves behind."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.machine import this_machine
from benchmarks.paths import report_folder
from benchmarks.soak.figures import grown
from benchmarks.soak.measure import measure
from benchmarks.soak.plan import Plan
from benchmarks.soak.report import SoakReport, make_tables, write_report
from flyserve.cli.terminal import EXIT_FAILED, messages, output, reported_errors


def soak(
    minutes: Annotated[float, typer.Option(min=0.1, help="Of load.")] = Plan().load_s / 60,
    quick: Annotated[bool, typer.Option(help="Seconds instead: it works, the figures mean little.")] = False,
    folder: Annotated[
        Path | None, typer.Option("--output", file_okay=False, help="Where report, figures and charts go.")
    ] = None,
) -> None:
    """Ask and leave, stall and err, and see whether anything grows; fails where something failed or grew."""
    plan = Plan().quick() if quick else replace(Plan(), load_s=60 * minutes)
    machine = this_machine()
    with reported_errors():
        run = asyncio.run(measure(plan, lambda words: messages().print(words, markup=False)))
    report = SoakReport(machine, plan, run)
    messages().print(f"wrote {write_report(report, report_folder(folder, quick))}", markup=False)
    for table in make_tables(report):
        output().print(table.rich())
    for fault in (*grown(run), *run.faults):
        messages().print(fault, markup=False)
    if run.faults or (grown(run) and not quick):
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    typer.run(soak)
