"""`python -m benchmarks.telemetry`: measures what telemetry costs a router and writes the report."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.peers.machine import this_machine
from benchmarks.progress import progress_bar
from benchmarks.telemetry.measure import Plan, measure
from benchmarks.telemetry.report import write_report
from benchmarks.telemetry.system import running_system
from flyserve.cli.terminal import messages, reported_errors

_ROOT = Path(__file__).resolve().parents[2]
_MODES = ("plain", "fly")


def telemetry(
    repetitions: Annotated[int, typer.Option(min=1, help="Of every setting in every mode.")] = 30,
    quick: Annotated[bool, typer.Option(help="A minute instead: it works, the figures mean little.")] = False,
) -> None:
    """Compare a router's CPU time per token with telemetry and without."""
    plan = replace(Plan(), repetitions=2, requests=8) if quick else replace(Plan(), repetitions=repetitions)
    # A quick run must not replace the figures of a real one.
    place = _ROOT / ("build" if quick else "docs") / "benchmarks"
    machine = this_machine()
    with reported_errors(), running_system() as (routers, sink):
        total = len(_MODES) * len(routers) * (plan.repetitions + 1)
        with progress_bar(messages(), total, "blocks") as advance:
            costs = [cost for mode in _MODES for cost in measure(routers, mode, plan, advance)]
        path = write_report(costs, plan, machine, sink.num_spans, place)
    messages().print(f"wrote {path}", markup=False)


if __name__ == "__main__":
    typer.run(telemetry)
