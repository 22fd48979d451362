"""`python -m benchmarks.simulate`: simulates a large deployment, measures a router, and writes the report."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.machine import this_machine
from benchmarks.parts import Parts
from benchmarks.paths import BUILD, report_folder
from benchmarks.simulate.plan import Models, Plan
from benchmarks.simulate.report import make_tables, write_report
from benchmarks.simulate.router_cost import RouterPlan
from benchmarks.simulate.runner import run
from flyserve.cli.terminal import messages, output, reported_errors

_CONTEXT_TOKENS = 2048


def simulate(
    shards: Annotated[int, typer.Option(min=2, max=8, help="GPUs of a target replica.")] = 2,
    streams: Annotated[int, typer.Option(min=1, help="Requests at once for every target.")] = 31,
    routers: Annotated[int, typer.Option(min=1, help="Of the largest deployment.")] = 8,
    dilation: Annotated[
        float | None, typer.Option(min=1, help="Real seconds for a simulated one; by default measured.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="A minute: it works, the figures mean little.")] = False,
    resume: Annotated[
        bool, typer.Option(help="Take over what a run of the same code measured before it broke off.")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option("--output", file_okay=False, help="Where report, figures and charts go.")
    ] = None,
) -> None:
    """Simulate 1 to 64 target replicas of 70B with drafters of 8B on H200s; ten minutes on two free cores."""
    models = Models.on_h200(shards, _CONTEXT_TOKENS)
    plan, router_plan = Plan(models, streams=streams, routers=routers, dilation=dilation), RouterPlan()
    if quick:
        plan, router_plan = plan.quick(), router_plan.quick()
    machine, parts = this_machine(), Parts(BUILD / "simulate", repr((plan, router_plan)), resume)
    with reported_errors():
        found = run(plan, router_plan, parts, messages())
        path = write_report(found, machine, report_folder(folder, quick))
        parts.clear()
        messages().print(f"wrote {path}", markup=False)
    for table in make_tables(found):
        output().print(table.rich())


if __name__ == "__main__":
    typer.run(simulate)
