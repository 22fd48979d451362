"""Print a response: streamed and coloured, several choices one after the other, or as JSON."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import typer
from rich.console import Console

from fly.response import Choice, Chunk, Response, Statistics
from flyserve.cli.terminal import messages, output
from flyserve.cli.verdicts import Colouring, legend, statistics_line
from flyserve.client import Stream


def print_json(value: Any) -> None:
    """Print a response or a part of one on standard output, in one line."""
    typer.echo(json.dumps(to_plain(value), ensure_ascii=False))


def print_json_lines(chunks: Iterable[Chunk]) -> None:
    """Print every chunk in its own line, as it arrives."""
    for chunk in chunks:
        print_json(chunk)


def show(stream: Stream) -> None:
    """Print the text on standard output as it arrives, then legend and statistics on standard error."""
    show_text(stream)
    if is_coloured(output()):
        show_legend()
    choice, response = stream.response.choices[0], stream.response
    show_notes(response.warnings, choice.statistics, response.resumed)


def show_text(chunks: Iterable[Chunk]) -> None:
    """Print the text on standard output as it arrives, and always end a line that has begun."""
    console, colouring, has_begun = output(), Colouring(), False
    try:
        for chunk in chunks:
            has_begun = True
            _print_chunk(console, colouring, chunk)
    finally:
        if has_begun:
            console.print()


def show_choices(response: Response) -> None:
    """Print every choice under a heading."""
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
    """Print the meaning of the colours on standard error."""
    messages().print(legend(), style="dim")


def show_notes(warnings: Sequence[str], statistics: Statistics, resumed: int = 0) -> None:
    """Print warnings and statistics on standard error."""
    aside = messages()
    for warning in warnings:
        aside.print(f"warning: {warning}", markup=False)
    again = f" | resumed {resumed} times" if resumed else ""
    aside.print(f"{statistics_line(statistics)}{again}", markup=False)


def is_coloured(console: Console) -> bool:
    """Return True if a console shows colours: it is a terminal, and NO_COLOR is not set."""
    return console.is_terminal and not console.no_color


def _print_chunk(console: Console, colouring: Colouring, chunk: Chunk) -> None:
    if is_coloured(console):
        console.print(colouring.colour(chunk), end="")
    else:
        console.print(chunk.text, end="", markup=False)
    console.file.flush()


def _as_chunk(choice: Choice) -> Chunk:
    return Chunk(text=choice.text, tokens=choice.tokens)


def to_plain(value: Any) -> Any:
    """Return a value as JSON has it: objects by the names of their fields, enumerations by value."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        names = getattr(value, "_fields", None)
        plain = [to_plain(item) for item in value]
        return plain if names is None else dict(zip(names, plain, strict=True))
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return value
