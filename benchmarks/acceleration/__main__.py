"""`python -m benchmarks.acceleration`: measures what speeds drafting up and writes the report."""

from functools import partial
from typing import Annotated

import torch
import typer

from benchmarks.acceleration.plan import Plan
from benchmarks.acceleration.report import make_tables, write_report
from benchmarks.acceleration.results import Results
from benchmarks.acceleration.runner import PARTS
from benchmarks.acceleration.runs import runs_from_data
from benchmarks.machine import this_machine
from benchmarks.options import Folder, Resume
from benchmarks.parts import Parts
from benchmarks.paths import BUILD, report_folder
from fly.errors import ConfigError
from flyserve.cli.terminal import messages, output, reported_errors


def acceleration(
    only: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(PARTS)}; may repeat.")] = None,
    quick: Annotated[bool, typer.Option(help="A few minutes: it works, the figures mean little.")] = False,
    resume: Resume = False,
    folder: Folder = None,
) -> None:
    """Compare sub-drafters, drafting ahead and draft lengths; about twenty minutes."""
    torch.set_num_threads(1)
    plan = Plan().quick() if quick else Plan()
    machine, parts = this_machine(), Parts(BUILD / "acceleration", repr(plan), resume)
    with reported_errors():
        names = _chosen(only or ())
        found = {name: parts.measure(name, partial(PARTS[name], plan, messages())) for name in names}
        results = Results(machine, plan, {name: runs_from_data(data) for name, data in found.items()})
        # A part of the report must not replace the whole.
        path = write_report(results, report_folder(folder, quick or bool(only)))
        parts.clear()
        messages().print(f"wrote {path}", markup=False)
    for table in make_tables(results):
        output().print(table.rich())


def _chosen(only: list[str] | tuple[()]) -> list[str]:
    for name in only:
        if name not in PARTS:
            raise ConfigError(f"--only: is {name!r}, must be one of {', '.join(PARTS)}")
    return [name for name in PARTS if name in only] or list(PARTS)


if __name__ == "__main__":
    typer.run(acceleration)
