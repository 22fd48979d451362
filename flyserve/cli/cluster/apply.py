"""`flyserve apply`: create or update a deployment on a Ray cluster."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fly.errors import NotReady
from flyserve.cli.cluster.connecting import ANSWER_S, RayAddress, read_status
from flyserve.cli.cluster.status import fault_line, is_complete, summary
from flyserve.cli.terminal import messages, output, reported_errors

if TYPE_CHECKING:
    from orchestration.control.status import DeploymentStatus
    from orchestration.deployment.diff import Report

_POLL_S = 0.3

EXAMPLES = """Examples:

flyserve apply deployment.yaml

flyserve apply deployment.yaml --no-wait --ray-address head:6379"""


def apply(
    deployment: Annotated[Path, typer.Argument(help="Deployment file.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the deployment of another file that has this name.")
    ] = False,
    wait: Annotated[bool, typer.Option(help="Return only when all replicas serve as the file says.")] = True,
    timeout_s: Annotated[float, typer.Option(min=1, help="Time limit of --wait, in seconds.")] = 600.0,
    ray_address: RayAddress = None,
    dashboard: Annotated[
        str | None,
        typer.Option(
            help="http://host:port of Ray's dashboard, for use outside the cluster: a job on the head"
            " applies the file, with --replace and --wait."
        ),
    ] = None,
) -> None:
    """Create or update a deployment on a Ray cluster; applying the same file again changes nothing.

    Only changed keys have an effect: replicas are added, drained, or replaced one by one.
    """
    with reported_errors():
        if dashboard is not None:
            from orchestration.ray.jobs import apply_as_job

            return apply_as_job(dashboard, deployment, timeout_s, output().print)
        from orchestration.deployment.file import load_deployment
        from orchestration.deployment.plan import ACTORS
        from orchestration.deployment.security import controller_security
        from orchestration.ray.connection import ray_connection
        from orchestration.ray.controller_client import create_controller, get_result

        made = load_deployment(deployment)
        with ray_connection(made.name, ray_address):
            controller = create_controller(
                name=made.name,
                host=None,
                config=made.controller,
                actors=ACTORS,
                security=controller_security(made.security),
            )
            source = str(deployment.resolve())
            report = get_result(controller.apply.remote(made.model_dump_json(), source, replace), ANSWER_S)
            _print_report(made.name, report)
            if wait:
                wait_until_complete(controller, timeout_s)
            output().print(f"registry {get_result(controller.address.remote(), ANSWER_S)}", markup=False)


def wait_until_complete(controller: Any, timeout_s: float) -> None:
    """Wait until all desired replicas serve and no others run; print the progress on stderr.

    Raise NotReady when the time is over; the message says what is missing and why.
    """
    deadline = time.monotonic() + timeout_s
    with messages().status("waiting for the replicas") as progress:
        while not is_complete(status := read_status(controller)):
            progress.update(summary(status))
            if time.monotonic() > deadline:
                raise NotReady(f"not complete after {timeout_s:g} s: {_faults(status)}")
            time.sleep(_POLL_S)


def _print_report(name: str, report: "Report") -> None:
    console = output()
    if report.is_new:
        console.print(f"{name}: created", markup=False)
    elif not report.changes:
        console.print(f"{name}: unchanged", markup=False)
    for change in report.changes:
        console.print(str(change), markup=False)


def _faults(status: "DeploymentStatus") -> str:
    faults = [fault_line(row) for row in status.replicas if row.detail]
    return "; ".join([summary(status), *faults])
