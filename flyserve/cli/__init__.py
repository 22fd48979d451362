"""The command line: one module a command; those that talk to a controller are in `cluster`."""

import io
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from flyserve.cli import bench, calibrate, chat, generate, info, pull, serve, token, up, upgrade
from flyserve.cli.cluster import apply, router, scaling, status
from flyserve.cli.terminal import output
from flyserve.cli.wording import use_plain_words
from flyserve.core.version import VERSION

_EPILOG = """Start with [bold]flyserve serve MODEL[/bold], or the demo with [bold]flyserve up[/bold];
then [bold]flyserve generate "your prompt"[/bold] elsewhere.

Exit status: 0 done, 1 failed, 2 wrong input, 3 nothing can serve just now,
130 interrupted, 143 ended by a signal."""

use_plain_words()
app = typer.Typer(
    name="flyserve",
    help="Serve language models faster: FLy speculative decoding as a distributed system.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        output().print(f"flyserve {VERSION}", markup=False)
        raise typer.Exit


def _add(name: str, command: Callable[..., Any], examples: str) -> None:
    """Add a command whose help is its docstring, with paragraphs as wide as the terminal."""
    paragraphs = (command.__doc__ or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    app.command(name, help=text, epilog=examples)(command)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Serve language models faster: FLy speculative decoding as a distributed system."""


_add("serve", serve.serve, serve.EXAMPLES)
_add("up", up.up, up.EXAMPLES)
_add("generate", generate.generate, generate.EXAMPLES)
_add("chat", chat.chat, chat.EXAMPLES)
_add("info", info.info, info.EXAMPLES)
_add("bench", bench.bench, bench.EXAMPLES)
_add("calibrate", calibrate.calibrate, calibrate.EXAMPLES)
_add("pull", pull.pull, pull.EXAMPLES)
_add("token", token.token, token.EXAMPLES)
_add("apply", apply.apply, apply.EXAMPLES)
_add("status", status.status, status.EXAMPLES)
_add("scale", scaling.scale, scaling.SCALE_EXAMPLES)
_add("drain", scaling.drain, scaling.DRAIN_EXAMPLES)
_add("down", scaling.down, scaling.DOWN_EXAMPLES)
_add("router", router.router, router.EXAMPLES)
_add("upgrade", upgrade.upgrade, upgrade.EXAMPLES)


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # as where it is Latin-1
    app()
