"""`python -m benchmarks.load`: measures the demo under load and writes the report."""

from collections.abc import Iterator
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from benchmarks.load.plan import Plan
from benchmarks.load.report import LoadReport, make_tables, write_report
from benchmarks.load.runner import run_level, running_demo
from benchmarks.load.window import Window
from benchmarks.machine import this_machine
from benchmarks.options import Folder, Resume, Verbose
from benchmarks.parts import Parts
from benchmarks.paths import BUILD, report_folder
from flyserve.cli.terminal import messages, output, reported_errors


def load(
    quick: Annotated[bool, typer.Option(help="Some seconds: it works, the figures mean little.")] = False,
    resume: Resume = False,
    folder: Folder = None,
    verbose: Verbose = False,
) -> None:
    """Compare the ways of decoding with 1, 4, 16 and 64 requests at once; about eleven minutes."""
    torch.set_num_threads(1)
    plan = Plan().quick() if quick else Plan()
    machine, parts = this_machine(), Parts(BUILD / "load", repr(plan), resume)
    with reported_errors():
        with running_demo(plan, verbose) as address:
            windows = tuple(_windows(address, plan, parts, messages()))
        report = LoadReport(machine, plan, windows)
        path = write_report(report, report_folder(folder, quick))
        parts.clear()
        messages().print(f"wrote {path}", markup=False)
    for table in make_tables(report):
        output().print(table.rich())


def _windows(address: str, plan: Plan, parts: Parts, console: Console) -> Iterator[Window]:
    for level in plan.levels:

        def measure(level: Any = level) -> Any:
            return run_level(address, level, plan, console)

        yield from (_window(data) for data in parts.measure(f"{level.concurrency}-at-once", measure))


def _window(data: dict[str, Any]) -> Window:
    gaps = tuple((float(gap_s), int(count)) for gap_s, count in data["gaps"])
    return Window(**{**data, "gaps": gaps, "firsts_s": tuple(data["firsts_s"])})


if __name__ == "__main__":
    typer.run(load)
