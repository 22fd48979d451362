"""`python -m benchmarks.telemetry`: measures what telemetry costs a router and writes the report."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.machine import this_machine
from benchmarks.telemetry.measure import Blocks, Plan, compare, measure
from benchmarks.telemetry.report import write_report
from benchmarks.telemetry.settings import settings
from benchmarks.telemetry.system import running_system
from flyserve.bench.progress import progress_bar
from flyserve.cli.terminal import messages, reported_errors

_ROOT = Path(__file__).resolve().parents[2]
_MODES = ("plain", "fly")


def telemetry(
    launches: Annotated[int, typer.Option(min=1, help="Times that everything is restarted.")] = 6,
    quick: Annotated[bool, typer.Option(help="A minute instead: it works, the figures mean little.")] = False,
) -> None:
    """Compare a router's CPU time per token with telemetry and without."""
    plan = Plan(launches=1, repetitions=2, requests=8) if quick else Plan(launches=launches)
    # A quick run must not replace the figures of a real one.
    place = _ROOT / ("build" if quick else "docs") / "benchmarks"
    machine = this_machine()
    with reported_errors():
        # What comes later may fail.
        for done, blocks, num_spans in _measure(plan):
            costs = [cost for mode in _MODES for cost in compare(blocks[mode], mode)]
            path = write_report(costs, replace(plan, launches=done), machine, num_spans, place)
    messages().print(f"wrote {path}", markup=False)


def _measure(plan: Plan) -> Iterator[tuple[int, dict[str, Blocks], int]]:
    """After each launch: how many there were, every block by mode and setting, the spans that came."""
    names = settings("")
    pooled: dict[str, Blocks] = {mode: {name: [] for name in names} for mode in _MODES}
    num_spans, total = 0, plan.launches * len(_MODES) * len(names) * (plan.repetitions + 1)
    with progress_bar(messages(), total, "blocks") as advance:
        for launch in range(plan.launches):
            with running_system() as (routers, sink):
                for mode in _MODES:
                    for name, told in measure(routers, mode, plan, advance).items():
                        pooled[mode][name] += told
                num_spans += sink.num_spans
            yield launch + 1, pooled, num_spans


if __name__ == "__main__":
    typer.run(telemetry)
