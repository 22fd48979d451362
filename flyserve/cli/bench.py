"""`flyserve bench`: plain decoding against exact speculation, FLy, and FLy with sub-drafter."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flyserve.cli.groups import grouped
from flyserve.cli.options import ConnectionOptions, Verbose
from flyserve.cli.terminal import messages, output, reported_errors
from flyserve.cli.up import running
from flyserve.client_base import ADDRESS_VARIABLE
from flyserve.core.errors import ConfigError
from flyserve.server import demo_file
from flyserve.whole_file import check_distinct_files, check_writable, write_whole

if TYPE_CHECKING:
    from flyserve.bench.comparison import Report

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
        from flyserve.bench.comparison import Limits, Report
        from flyserve.bench.tasks import load_tasks, own_tasks

        if connection.encrypts() and not connection.address:
            raise ConfigError("--tls: needs the --address of a deployment: the demo speaks no TLS")
        check_distinct_files({"--prompts": prompts, "--output": report})
        if report is not None:
            check_writable(report)
        wanted = problems or DEFAULT_PROBLEMS
        tasks = load_tasks(wanted) if prompts is None else own_tasks(prompts, problems)
        if prompts is None and len(tasks) < wanted:
            raise ConfigError(f"--problems: is {wanted}, must be at most {len(tasks)}")
        found = Report()
        try:
            with served_at(connection.address, verbose) as served, connection.client(served) as client:
                found.run(client, tasks, messages(), Limits(max_new_tokens, connection.timeout_s))
        finally:  # NOTE: a request that fails, or Ctrl-C, costs no measurement before it.
            if found.tasks:
                _report(found, len(tasks), report)


def _report(found: "Report", num_tasks: int, file: Path | None) -> None:
    """Write the file if one was asked for, and print the table, also if the file cannot be written."""
    from flyserve.bench.comparison import comparison_table, notes

    try:
        if file is not None:
            write_whole(file, found.as_json())
    finally:  # NOTE: last, since a closed pipe ends the process.
        summaries = found.summaries()
        output().print(comparison_table(summaries))
        for note in notes(summaries, num_tasks):
            output().print(note, markup=False)


@contextmanager
def served_at(addresses: Sequence[str] | None, verbose: bool) -> Iterator[Sequence[str]]:
    """Yield the given addresses, or that of the demo, which runs while the block does."""
    if addresses:
        yield addresses
        return
    with running(demo_file(), grpc_port=0, http_port=0, verbose=verbose) as deployed:
        yield [deployed.address]
