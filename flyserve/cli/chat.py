"""`flyserve chat`: a conversation in the terminal, each answer streamed with coloured verdicts."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Annotated

import typer

from flyserve.cli.groups import grouped
from flyserve.cli.options import ConnectionOptions, SamplingOptions, SpeculationOptions
from flyserve.cli.reading import is_stdin_a_terminal, stdin_lines
from flyserve.cli.show import is_coloured, print_json, show_legend, show_notes, show_text
from flyserve.cli.terminal import messages, output, print_error, reported_errors
from flyserve.client import Client, Stream
from flyserve.core.errors import FlyServeError
from flyserve.core.request import ChatMessage

EXAMPLES = """Examples:

flyserve chat --system "Answer in one sentence."

printf 'Hello!\\nAnd again?\\n' | flyserve chat --json"""

_HELP = "/new starts a new conversation, /help shows this, /quit or Ctrl-D ends it, Ctrl-C stops an answer"
_COMMAND = re.compile(r"/\w+")

Ask = Callable[[list[ChatMessage]], Stream]
"""Streams the answer to a conversation."""


@grouped
def chat(
    sampling: SamplingOptions,
    speculation: SpeculationOptions,
    connection: ConnectionOptions,
    system: Annotated[str, typer.Option(help="System message.")] = "",
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer in tokens.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each answer as one JSON object.")] = False,
) -> None:
    """Talk with the model, by its chat template; each token is coloured by its verdict.

    On a terminal: /new starts a new conversation, /help shows the commands, /quit or Ctrl-D ends it, Ctrl-C
    stops an answer. From a pipe every line but /new is a turn, and the first error ends the conversation.
    """
    with reported_errors(), connection.client() as client:

        def ask(conversation: list[ChatMessage]) -> Stream:
            return client.stream_chat(
                conversation, max_new_tokens, sampling, speculation, timeout_s=connection.timeout_s
            )

        is_interactive = is_stdin_a_terminal() and sys.stdout.isatty()
        if is_interactive:
            _greet(client, connection.timeout_s)
        opening = [ChatMessage("system", system)] if system else []
        conversation = list(opening)
        for line in _typed() if is_interactive else _piped():
            if line == "/new":
                conversation = list(opening)
            elif is_interactive and _COMMAND.fullmatch(line):
                unknown = "" if line == "/help" else f"{line} is no command: "
                messages().print(f"{unknown}{_HELP}", markup=False, style="dim")
            else:
                _take_turn(ask, conversation, line, as_json, is_interactive)


def _take_turn(
    ask: Ask, conversation: list[ChatMessage], line: str, as_json: bool, is_interactive: bool
) -> None:
    """Send a line and show the answer; drop a turn that failed."""
    conversation.append(ChatMessage("user", line))
    try:
        answer = _show_answer(ask(conversation), as_json, is_interactive)
    except FlyServeError as error:
        if not is_interactive:
            raise
        conversation.pop()
        print_error(error)
        return
    conversation.append(ChatMessage("assistant", answer))


def _show_answer(stream: Stream, as_json: bool, is_interactive: bool) -> str:
    """Show an answer and return its text, or the part that arrived before Ctrl-C."""
    with stream:
        try:
            if as_json:
                list(stream)
                print_json(stream.response)
            else:
                show_text(stream)
        except KeyboardInterrupt:
            if not is_interactive:
                raise
            messages().print("stopped", style="dim")
    response = stream.response
    if is_interactive and response.finish_reason is not None:
        show_notes(response.warnings, response.statistics, response.resumed)
    return response.text


def _greet(client: Client, timeout_s: float | None) -> None:
    aside = messages()
    aside.print(f"{client.info(timeout_s).target.model_id}: {_HELP}", markup=False, style="dim")
    if is_coloured(output()):
        show_legend()


def _typed() -> Iterator[str]:
    """Yield the lines that a person types, with a history."""
    with suppress(ImportError):
        import readline  # noqa: F401
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            messages().print()
            return
        except UnicodeDecodeError:
            messages().print("that is not UTF-8", style="dim")
            continue
        if line == "/quit":
            return
        if line:
            yield line


def _piped() -> Iterator[str]:
    yield from (line.strip() for line in stdin_lines() if line.strip())
