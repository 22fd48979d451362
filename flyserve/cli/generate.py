"""`flyserve generate`: one prompt, its response streamed with coloured verdicts."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from enum import Enum
from typing import Annotated, Any

import typer
from rich.console import Console

from fly.types import Mode
from flyserve.cli.terminal import DEFAULT_ADDRESS, messages, output, reported_errors
from flyserve.cli.verdicts import coloured, legend, statistics_line
from flyserve.client import Client
from flyserve.types import Chunk, Piece, Speculation


def generate(
    prompt: Annotated[str, typer.Argument(help="What to continue; - reads it from standard input.")],
    mode: Annotated[Mode | None, typer.Option(help="How to decode.")] = None,
    preset: Annotated[str | None, typer.Option(help="Named rule that fly starts from.")] = None,
    draft_length: Annotated[int | None, typer.Option(min=0, help="Draft tokens per round.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest response in tokens.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole response as JSON.")] = False,
    address: Annotated[
        str, typer.Option(envvar="FLYSERVE_ADDRESS", help="host:port of the deployment.")
    ] = DEFAULT_ADDRESS,
) -> None:
    """Generate a response and show how each token came to be.

    What is not given is the deployment's default.
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    speculation = Speculation(mode=mode, preset=preset, draft_length=draft_length)
    with reported_errors("start a deployment with: flyserve up"), Client(address) as client:
        if as_json:
            response = client.generate(text, max_new_tokens, speculation=speculation)
            typer.echo(json.dumps(asdict(response), default=_plain, ensure_ascii=False))
            return
        _show(client, client.stream(text, max_new_tokens, speculation=speculation))


def _show(client: Client, chunks: Any) -> None:
    console, aside = output(), messages()
    last: Chunk | None = None
    for last in chunks:
        _print_chunk(console, last, client.tokenize)
    console.print()
    if last is None or last.statistics is None:
        return
    if console.is_terminal and not console.no_color:
        aside.print(legend(), style="dim")
    for warning in last.warnings:
        aside.print(f"warning: {warning}", markup=False)
    aside.print(statistics_line(last.statistics), markup=False)


def _print_chunk(console: Console, chunk: Chunk, tokenize: Callable[[str], Sequence[Piece]]) -> None:
    if console.is_terminal and not console.no_color:
        console.print(coloured(chunk, tokenize), end="")
    else:
        console.print(chunk.text, end="", markup=False)
    console.file.flush()


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} is not part of a response")
