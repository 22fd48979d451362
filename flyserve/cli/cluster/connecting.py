"""Which deployment a command is about, and how its controller is reached."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from orchestration.control.status import DeploymentStatus

ANSWER_S = 30.0
"""Within which a controller answers; one that is being restarted takes a few seconds."""

Name = Annotated[str, typer.Option(help="Of the deployment: its file's key name.")]
RayAddress = Annotated[
    str | None,
    typer.Option(
        help="host:port of Ray's GCS; else RAY_ADDRESS, what flyserve up runs here, or this node's Ray."
    ),
]
DEFAULT_NAME = "default"


@contextmanager
def controller_of(name: str, ray_address: str | None) -> Iterator[Any]:
    """The handle of a running deployment's controller."""
    from orchestration.ray.connection import ray_connection
    from orchestration.ray.controller_client import find_controller

    with ray_connection(name, ray_address):
        yield find_controller(name)


def read_status(controller: Any) -> "DeploymentStatus":
    """Asks a controller."""
    from orchestration.ray.controller_client import get_result

    status: DeploymentStatus = get_result(controller.status.remote(), ANSWER_S)
    return status
