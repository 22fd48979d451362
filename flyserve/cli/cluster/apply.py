"""`flyserve apply`: create or update a deployment on a Ray cluster."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from flyserve.cli.cluster.connecting import RayAddress, ask, read_status
from flyserve.cli.cluster.status import fault_lines, is_complete, summary
from flyserve.cli.options import time_option
from flyserve.cli.terminal import messages, output, reported_errors
from flyserve.core.errors import NotReady

if TYPE_CHECKING:
    from orchestration.deployment.diff import Report
    from orchestration.deployment.file import Deployment
    from orchestration.local.local_ray import LocalDeploymentInfo

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
    timeout_s: Annotated[float, time_option(min=1, help="Time limit of --wait, in seconds.")] = 600.0,
    remote_models: Annotated[
        bool,
        typer.Option(
            "--remote-models",
            help="Do not check absolute paths of models here: only the nodes of the replicas have them.",
        ),
    ] = False,
    ray_address: RayAddress = None,
    dashboard: Annotated[
        str | None,
        typer.Option(
            help="http://host:port of Ray's dashboard, for use outside the cluster: a job on the head"
            " applies the file, with --replace, --wait and --remote-models."
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
        from orchestration.ray.connection import ray_connection
        from orchestration.ray.controller_client import create_controller

        made = load_deployment(deployment, has_models=not remote_models)
        with ray_connection(made.name, ray_address) as local:
            made = _settled(made, local)
            controller = create_controller(made, host=None, actors=ACTORS)
            source = str(deployment.resolve())
            report = ask(controller.apply, made.model_dump_json(), source, replace)
            _print_report(made.name, report)
            if wait:
                wait_until_complete(controller, timeout_s)
            for note in read_status(controller).notes:
                messages().print(f"warning: {note}", markup=False, style="yellow")
            output().print(f"registry {ask(controller.address)}", markup=False)


def _settled(made: "Deployment", local: "LocalDeploymentInfo | None") -> "Deployment":
    """Return the deployment with numbers in the place of `auto`.

    A file of a local deployment gets those that `flyserve up` gives it, for the same machine as it was before
    the replicas took their memory: so the file that runs changes nothing.
    """
    from orchestration.machine.serving import settled_deployment
    from orchestration.machine.settling import settled_on_cluster
    from orchestration.ray.api import nodes

    if local is not None and local.name == made.name and local.machine is not None:
        return settled_deployment(made, local.machine)
    gpus_of_nodes = [node.resources.get("GPU", 0.0) for node in nodes()]
    return settled_on_cluster(made, gpus_of_nodes, _running(made.name))


def _running(name: str) -> "Deployment | None":
    """Return the deployment of this name that the cluster runs; None if there is none, or it is not known.

    NOTE: a new controller is created only for a deployment that is settled, and so known to be valid. A
    controller of an older version has no such method.
    """
    from orchestration.deployment.file import Deployment
    from orchestration.ray.controller_client import find_controller, has_controller

    method = getattr(find_controller(name), "deployment", None) if has_controller(name) else None
    if method is None or (found := ask(method)) is None:
        return None
    return Deployment.model_validate_json(found)


def wait_until_complete(controller: Any, timeout_s: float) -> None:
    """Wait until all desired replicas serve and no others run; print the progress on stderr.

    Raise NotReady when the time is over; the message says what is missing and why.
    """
    deadline = time.monotonic() + timeout_s
    with messages().status("waiting for the replicas") as progress:
        while not is_complete(status := read_status(controller)):
            progress.update(Text(summary(status)))  # not markup
            if time.monotonic() > deadline:
                found = "; ".join([summary(status), *fault_lines(status)])
                raise NotReady(f"not complete after {timeout_s:g} s: {found}")
            time.sleep(_POLL_S)


def _print_report(name: str, report: "Report") -> None:
    console = output()
    if report.is_new:
        console.print(f"{name}: created", markup=False)
    elif not report.changes:
        console.print(f"{name}: unchanged", markup=False)
    for change in report.changes:
        console.print(str(change), markup=False)
