"""`flyserve status`: show every replica of a deployment, live."""

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live

from flyserve.cli.cluster.connecting import DEFAULT_NAME, Name, RayAddress, controller_of, read_status
from flyserve.cli.cluster.table import status_view
from flyserve.cli.terminal import output, reported_errors

if TYPE_CHECKING:
    from orchestration.control.status import DeploymentStatus

EXAMPLES = """Examples:

flyserve status --watch

flyserve status --json | jq .tiers"""


def status(
    name: Name = DEFAULT_NAME,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    every_s: Annotated[float, typer.Option(min=0.1, help="Seconds between two refreshes.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per refresh.")] = False,
    ray_address: RayAddress = None,
) -> None:
    """Show a deployment's tiers and replicas: node, state, load, last fault and its remedy."""
    with reported_errors(), controller_of(name, ray_address) as controller:
        if as_json:
            typer.echo(_json(read_status(controller)))
            while watch:
                time.sleep(every_s)
                typer.echo(_json(read_status(controller)))
        elif watch:
            with Live(status_view(read_status(controller)), console=output(), auto_refresh=False) as live:
                while True:
                    time.sleep(every_s)
                    live.update(status_view(read_status(controller)), refresh=True)
        else:
            output().print(status_view(read_status(controller)))


def _json(status: "DeploymentStatus") -> str:
    return json.dumps(asdict(status))
