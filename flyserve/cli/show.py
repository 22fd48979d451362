"""Print a response: streamed and coloured by verdict, several choices one after the other, or as JSON."""

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from flyserve.cli.terminal import SafeConsole, messages, output, visible
from flyserve.client import Stream
from flyserve.core.response import Chunk, Part, Response, Statistics
from flyserve.core.types import Verdict

STYLES = {
    Verdict.EXACT: "green",
    Verdict.RESCUED: "bold yellow",
    Verdict.CORRECTED: "red",
    Verdict.BONUS: "cyan",
    Verdict.PLAIN: "default",
    Verdict.DRAFT: "magenta",
}
_MEANINGS = {
    Verdict.EXACT: "the target's choice, drafted",
    Verdict.RESCUED: "accepted by FLy",
    Verdict.CORRECTED: "by the target",
    Verdict.BONUS: "after a whole draft",
    Verdict.PLAIN: "no draft",
    Verdict.DRAFT: "by the drafter alone",
}
_CONTROLS = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
"""Control characters that JSON leaves as they are: a terminal may obey them."""


class Colouring:
    """Text of one choice as it arrives, each token's part in the colour of its verdict."""

    def __init__(self) -> None:
        self._pending: deque[tuple[str, Verdict]] = deque()

    def colour(self, chunk: Part) -> Text:
        """Return the text of a chunk or of a whole choice, as a terminal shows it.

        A token arrives before its text if the text may begin a stop string, hence the queue. Text without a
        token, an incomplete character at the end, stays uncoloured.
        """
        self._pending.extend((token.text, token.verdict) for token in chunk.tokens)
        text, at = Text(), 0
        while at < len(chunk.text) and self._pending:
            part, verdict = self._pending.popleft()
            shown = part[: len(chunk.text) - at]
            text.append(visible(chunk.text[at : at + len(shown)]), STYLES[verdict])
            at += len(shown)
            if len(shown) < len(part):
                self._pending.appendleft((part[len(shown) :], verdict))
        return text.append(visible(chunk.text[at:]))


def legend() -> Text:
    """Return one line that explains the colours."""
    entries = (
        Text.assemble((verdict.value, style), f" {_MEANINGS[verdict]}") for verdict, style in STYLES.items()
    )
    return Text(" | ").join(entries)


def statistics_line(statistics: Statistics) -> str:
    """Return one line: number of tokens, speed, and the effect of speculation."""
    speed = statistics.emitted / statistics.total_s if statistics.total_s else 0.0
    parts = [
        f"{statistics.emitted} tokens",
        f"{speed:.1f} tokens/s",
        f"tau {statistics.tau:.2f}",
        f"{statistics.rescued} rescued",
        f"first token after {statistics.time_to_first_token_s * 1000:.0f} ms",
    ]
    return " | ".join(parts)


def print_json(value: Any) -> None:
    """Print a response or a part of one on standard output, in one line."""
    typer.echo(json.dumps(to_plain(value), ensure_ascii=False).translate(_CONTROLS))


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
        _print_chunk(console, Colouring(), choice)
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


def _print_chunk(console: SafeConsole, colouring: Colouring, chunk: Part) -> None:
    console.write_text(colouring.colour(chunk) if is_coloured(console) else chunk.text)


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
