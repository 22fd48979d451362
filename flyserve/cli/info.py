"""`flyserve info`: what a deployment serves, live."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from fly.errors import FlyServeError
from flyserve.cli.groups import grouped
from flyserve.cli.options import ConnectionOptions
from flyserve.cli.show import print_json
from flyserve.cli.terminal import START_FIRST, output, reported_errors
from flyserve.client import Client
from flyserve.types import Deployment, Model

EXAMPLES = """Examples:

flyserve info

flyserve info --watch --every-s 1

flyserve info --json | jq .deployment.target.model_id"""

_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Status:
    """What a deployment says of itself at one moment.

    Attributes:
        deployment: Models, defaults and limits, as the public service tells them.
        answered_in_s: How long it took to say so.
    """

    deployment: Deployment
    answered_in_s: float


@grouped
def info(
    connection: ConnectionOptions,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")] = False,
    every_s: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per look.")] = False,
) -> None:
    """Show what a deployment serves: its models, what a request gets by default, and its limits."""
    with reported_errors(START_FIRST), connection.client() as client:
        timeout_s = connection.timeout_s or _TIMEOUT_S
        if not watch:
            look = read_status(client, timeout_s)
            print_json(look) if as_json else output().print(view(look))
        elif as_json:
            for _ in _ticks(every_s):
                print_json(read_status(client, timeout_s))
        else:
            _watch(client, timeout_s, every_s)


def read_status(client: Client, timeout_s: float) -> Status:
    """Asks the deployment.

    Raises:
        FlyServeError: It does not answer, or serves nothing at present.
    """
    started = time.monotonic()
    deployment = client.info(timeout_s)
    return Status(deployment, time.monotonic() - started)


def view(status: Status) -> RenderableType:
    """All of it, a section after the other."""
    deployment = status.deployment
    return Group(
        Text(f"FlyServe {deployment.version}, answered in {status.answered_in_s * 1000:.0f} ms"),
        _model("target", deployment.target),
        _model("drafter", deployment.drafter),
        _pairs("by default", _said(asdict(deployment.default))),
        _pairs("at most", asdict(deployment.limits)),
    )


def _watch(client: Client, timeout_s: float, every_s: float) -> None:
    """Keeps the picture up to date, or prints one after the other where there is no terminal.

    A deployment that is away is shown as such until it is back.
    """
    console = output()
    looks = (_look(client, timeout_s) for _ in _ticks(every_s))
    if not console.is_terminal:
        for look in looks:
            console.print(look)
            console.file.flush()
        return
    with Live(console=console, auto_refresh=False) as live:
        for look in looks:
            live.update(look, refresh=True)


def _look(client: Client, timeout_s: float) -> RenderableType:
    """The picture at this moment."""
    try:
        shown = view(read_status(client, timeout_s))
    except FlyServeError as error:
        shown = Text(f"away: {error}", style="red")
    return Group(Text(time.strftime("%H:%M:%S"), style="dim"), shown)


def _ticks(every_s: float) -> Iterator[None]:
    while True:
        yield
        time.sleep(every_s)


def _model(tier: str, model: Model | None) -> Text:
    if model is None:
        return Text.assemble((f"{tier}: ", "dim"), "none at present, so responses are decoded without drafts")
    context = f"{model.context_length:,} tokens" if model.context_length else "unlimited"
    parts = (
        model.architecture,
        model.dtype,
        f"context {context}",
        f"vocabulary {model.vocab_size:,}",
        f"weights {model.weight_fingerprint[:12]}",
    )
    told = ", ".join(part for part in parts if part)
    return Text.assemble((f"{tier}: ", "dim"), (model.model_id, "bold"), f" ({told})")


def _pairs(title: str, values: dict[str, object]) -> Text:
    listed = ", ".join(f"{name} {_named(value)}" for name, value in values.items())
    return Text.assemble((f"{title}: ", "dim"), listed)


def _said(values: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def _named(value: object) -> str:
    return str(value.value if isinstance(value, Enum) else value)
