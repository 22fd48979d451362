"""`python -m benchmarks.peers`: measures FlyServe beside transformers and writes the report."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import torch
import typer

from benchmarks.machine import this_machine
from benchmarks.options import Folder, Verbose
from benchmarks.paths import report_folder
from benchmarks.peers.pairs import PAIRS
from benchmarks.peers.plan import Plan
from benchmarks.peers.report import write_report
from benchmarks.peers.results import Results
from benchmarks.peers.runner import run_engine, run_pair
from benchmarks.peers.tables import make_tables
from flyserve.cli.terminal import messages, output, reported_errors


class Dtype(StrEnum):
    """Compute type of every model."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


def peers(
    pair: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(PAIRS)}; may repeat.")] = None,
    dtype: Annotated[Dtype, typer.Option(help="Of every model in every place.")] = Dtype.BFLOAT16,
    repetitions: Annotated[int, typer.Option(min=1, help="Of every prompt under every setting.")] = 3,
    prompts: Annotated[int, typer.Option(min=1, max=300, help="Of every pair.")] = 8,
    new_tokens: Annotated[int, typer.Option(min=1, max=512, help="Of every response, at most.")] = 256,
    engine: Annotated[bool, typer.Option(help="Measure the target's engine alone, too.")] = True,
    quick: Annotated[bool, typer.Option(help="A minute instead: it works, the figures mean little.")] = False,
    folder: Folder = None,
    verbose: Verbose = False,
) -> None:
    """Compare FlyServe, in one process and as a whole, with transformers' own ways of decoding."""
    torch.set_num_threads(1)
    plan = Plan(dtype.value, repetitions, prompts, new_tokens)
    plan = plan.quick() if quick else plan
    place = report_folder(folder, quick)
    with reported_errors():
        for results in _measure(plan, pair or PAIRS, engine, verbose):
            path = write_report(results, place, _stem(dtype))
            messages().print(f"wrote {path}", markup=False)
    for table in make_tables(results):
        output().print(table.rich())


def _measure(plan: Plan, pairs: Sequence[str], engine: bool, verbose: bool) -> Iterator[Results]:
    """The results so far after each part: what comes later may fail."""
    results, console = Results(this_machine(), plan), messages()
    for name in pairs:
        results = replace(results, pairs=(*results.pairs, run_pair(name, plan, console, verbose)))
        yield results
    if engine:
        yield replace(results, engine=tuple(run_engine(plan, console)))


def _stem(dtype: Dtype) -> str:
    return "peers" if dtype is Dtype.BFLOAT16 else f"peers-{dtype.value}"


if __name__ == "__main__":
    typer.run(peers)
