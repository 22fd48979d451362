"""`flyserve bench`: plain decoding against exact speculation, FLy, and FLy with sub-drafter."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from flyserve.cli.groups import grouped
from flyserve.cli.options import ConnectionOptions, Verbose
from flyserve.cli.terminal import messages, output, reported_errors
from flyserve.cli.up import running
from flyserve.client_base import ADDRESS_VARIABLE
from flyserve.core.errors import ConfigError
from flyserve.server import demo_file
from flyserve.whole_file import check_writable, write_whole

DEFAULT_PROBLEMS = 60
"""Shipped problems to send, unless a number is given."""
EXAMPLES = """Examples:

flyserve bench --problems 60

flyserve bench --address 10.0.0.5:50051 --output comparison.json

flyserve bench --address 10.0.0.5:50051 --prompts prompts.jsonl"""


@dataclass(frozen=True, slots=True)
class DeploymentOptions(ConnectionOptions):
    """A running deployment, or the demo."""

    address: Annotated[
        list[str] | None,
        typer.Option(
            envvar=ADDRESS_VARIABLE,
            metavar="HOST:PORT",
            help="A router of a running deployment; may repeat.",
            show_default="the demo, started and stopped",
            rich_help_panel="Connection",
        ),
    ] = None


@grouped
def bench(
    connection: DeploymentOptions,
    problems: Annotated[
        int | None,
        typer.Option(min=1, help="Send the first problems only.", show_default="60, or all --prompts"),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help='File of your own problems, a JSON object a line: {"prompt": "...", "answer": "..."}.'
            " A response that contains the answer is right; without an answer only speeds are compared."
            " It may be that of flyserve calibrate.",
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest response in tokens.")] = 512,
    report: Annotated[
        Path | None, typer.Option("--output", dir_okay=False, help="Write all measurements as JSON.")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Compare the ways of decoding on held-out tasks or on your own prompts, and print a table."""
    with reported_errors():
        from flyserve.bench.comparison import Limits, comparison_table, notes, run
        from flyserve.bench.tasks import load_tasks, own_tasks

        if report is not None:
            check_writable(report)
        wanted = problems or DEFAULT_PROBLEMS
        tasks = load_tasks(wanted) if prompts is None else own_tasks(prompts, problems)
        if prompts is None and len(tasks) < wanted:
            raise ConfigError(f"--problems: is {wanted}, must be at most {len(tasks)}")
        with served_at(connection.address, verbose) as served, connection.client(served) as client:
            limits = Limits(max_new_tokens, connection.timeout_s)
            summaries, data = run(client, tasks, messages(), limits)
        try:
            if report is not None:
                write_whole(report, json.dumps(data, indent=1) + "\n")
        finally:  # NOTE: last, since a closed pipe ends the process.
            output().print(comparison_table(summaries))
            for note in notes(summaries):
                output().print(note, markup=False)


@contextmanager
def served_at(addresses: Sequence[str] | None, verbose: bool) -> Iterator[Sequence[str]]:
    """Yield the given addresses, or that of the demo, which runs while the block does."""
    if addresses:
        yield addresses
        return
    with running(demo_file(), grpc_port=0, http_port=0, verbose=verbose) as deployed:
        yield [deployed.address]
