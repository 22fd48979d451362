"""A response on the terminal: streamed and coloured, several choices one after the other, or as JSON."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from enum import Enum
from typing import Any

import typer
from rich.console import Console

from flyserve.cli.terminal import messages, output
from flyserve.cli.verdicts import Colouring, legend, statistics_line
from flyserve.client import Stream
from flyserve.types import Choice, Chunk, Response, Statistics


def print_json(value: Any) -> None:
    """A response or a part of one on standard output, in one line."""
    typer.echo(json.dumps(asdict(value), default=_plain, ensure_ascii=False))


def print_json_lines(chunks: Iterable[Chunk]) -> None:
    """Every chunk in a line of its own, as it comes."""
    for chunk in chunks:
        print_json(chunk)


def show(stream: Stream) -> None:
    """The text as it comes on standard output; then legend, warnings and statistics on standard error."""
    show_text(stream)
    if is_coloured(output()):
        show_legend()
    choice, response = stream.response.choices[0], stream.response
    show_notes(response.warnings, choice.statistics, response.resumed)


def show_text(chunks: Iterable[Chunk]) -> None:
    """The text as it comes on standard output, and the end of the line that has begun, however it ends."""
    console, colouring, has_begun = output(), Colouring(), False
    try:
        for chunk in chunks:
            has_begun = True
            _print_chunk(console, colouring, chunk)
    finally:
        if has_begun:
            console.print()


def show_choices(response: Response) -> None:
    """Every choice under a heading."""
    console = output()
    for choice in response.choices:
        console.print(f"[choice {choice.index}]", markup=False, style="dim")
        _print_chunk(console, Colouring(), _as_chunk(choice))
        console.print()
    if is_coloured(console):
        show_legend()
    for choice in response.choices:
        show_notes(response.warnings if choice.index == 0 else (), choice.statistics)


def show_legend() -> None:
    """What the colours mean, on standard error."""
    messages().print(legend(), style="dim")


def show_notes(warnings: Sequence[str], statistics: Statistics, resumed: int = 0) -> None:
    """Warnings and statistics on standard error."""
    aside = messages()
    for warning in warnings:
        aside.print(f"warning: {warning}", markup=False)
    again = f" | resumed {resumed} times" if resumed else ""
    aside.print(f"{statistics_line(statistics)}{again}", markup=False)


def is_coloured(console: Console) -> bool:
    """Whether a console shows colours: it is a terminal, and nobody has set NO_COLOR."""
    return console.is_terminal and not console.no_color


def _print_chunk(console: Console, colouring: Colouring, chunk: Chunk) -> None:
    if is_coloured(console):
        console.print(colouring.colour(chunk), end="")
    else:
        console.print(chunk.text, end="", markup=False)
    console.file.flush()


def _as_chunk(choice: Choice) -> Chunk:
    return Chunk(choice.text, choice.tokens, "", 0, choice.finish_reason, choice.statistics, (), choice.index)


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} is not part of a response")
