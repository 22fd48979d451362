"""Options that name a deployment, and the connection to its controller."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from orchestration.control.status import DeploymentStatus

_ANSWER_S = 30.0
"""Time limit of a controller's answer; a controller that restarts takes a few seconds."""

Name = Annotated[
    str | None,
    typer.Option(help="Name of the deployment: key name of its file. Default: the only one that runs."),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        help="host:port of Ray's GCS; default: RAY_ADDRESS, the Ray of flyserve up, or this node's Ray."
    ),
]


@contextmanager
def controller_of(name: str | None, ray_address: str | None) -> Iterator[Any]:
    """Connect to Ray and yield the controller of a deployment; without a name, that of the only one."""
    from orchestration.local.local_ray import require_controller
    from orchestration.ray.connection import ray_connection
    from orchestration.ray.controller_client import find_controller

    if not (ray_address or os.environ.get("RAY_ADDRESS")):
        require_controller(name)
    with ray_connection(name, ray_address):
        yield find_controller(name)


def ask(method: Any, *arguments: Any) -> Any:
    """Call a method of a controller and return its answer."""
    from orchestration.ray.controller_client import get_result

    return get_result(method.remote(*arguments), _ANSWER_S)


def read_status(controller: Any) -> "DeploymentStatus":
    """Return the status that a controller reports."""
    status: DeploymentStatus = ask(controller.status)
    return status
