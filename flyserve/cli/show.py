"""A response on the terminal: streamed and coloured, several choices one after the other, or as JSON."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from enum import Enum

import typer
from rich.console import Console

from flyserve.cli.terminal import messages, output
from flyserve.cli.verdicts import Colouring, legend, statistics_line
from flyserve.types import Choice, Chunk, Response, Statistics


def print_json(response: Response) -> None:
    """The whole response on standard output."""
    typer.echo(json.dumps(asdict(response), default=_plain, ensure_ascii=False))


def show(chunks: Iterable[Chunk]) -> None:
    """The text as it comes on standard output; warnings and statistics on standard error."""
    console, colouring = output(), Colouring()
    last: Chunk | None = None
    for last in chunks:
        _print_chunk(console, colouring, last)
    console.print()
    if last is not None and last.statistics is not None:
        _print_legend(console)
        _print_notes(last.warnings, last.statistics)


def show_choices(response: Response) -> None:
    """Every choice under a heading."""
    console = output()
    for choice in response.choices:
        console.print(f"[choice {choice.index}]", markup=False, style="dim")
        _print_chunk(console, Colouring(), _as_chunk(choice))
        console.print()
    _print_legend(console)
    for choice in response.choices:
        warnings = response.warnings if choice.index == 0 else ()
        _print_notes(warnings, choice.statistics)


def _print_chunk(console: Console, colouring: Colouring, chunk: Chunk) -> None:
    if console.is_terminal and not console.no_color:
        console.print(colouring.colour(chunk), end="")
    else:
        console.print(chunk.text, end="", markup=False)
    console.file.flush()


def _print_legend(console: Console) -> None:
    if console.is_terminal and not console.no_color:
        messages().print(legend(), style="dim")


def _print_notes(warnings: Sequence[str], statistics: Statistics) -> None:
    aside = messages()
    for warning in warnings:
        aside.print(f"warning: {warning}", markup=False)
    aside.print(statistics_line(statistics), markup=False)


def _as_chunk(choice: Choice) -> Chunk:
    return Chunk(choice.text, choice.tokens, "", 0, choice.finish_reason, choice.statistics, (), choice.index)


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} is not part of a response")
