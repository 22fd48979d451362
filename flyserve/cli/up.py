"""`flyserve up`: a whole deployment on this machine until Ctrl-C."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flyserve.cli.terminal import messages, output, reported_errors

if TYPE_CHECKING:
    from orchestration.local import LocalDeployment
    from orchestration.status import ReplicaStatus

DEMO = Path(__file__).resolve().parent.parent.parent / "demo" / "deployment.yaml"


def up(
    deployment: Annotated[
        Path | None, typer.Argument(help="Deployment file; the shipped demo when absent.", show_default=False)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Of the public service instead of the file's; 0: any."),
    ] = None,
    startup_timeout_s: Annotated[float, typer.Option(min=1, help="For the replicas to be ready.")] = 120.0,
    verbose: Annotated[bool, typer.Option(help="Print what the services log.")] = False,
) -> None:
    """Start a deployment on this machine: Ray, controller, services, router. Ctrl-C stops it."""
    console = output()
    with reported_errors():
        try:
            with running(deployment or DEMO, port, startup_timeout_s, verbose) as deployed:
                _print_addresses(deployed)
                console.print(f"ready {deployed.address}", markup=False)
                console.file.flush()
                deployed.wait()
        except KeyboardInterrupt:
            messages().print("stopped")


@contextmanager
def running(
    path: Path, port: int | None = None, startup_timeout_s: float = 120.0, verbose: bool = False
) -> Iterator["LocalDeployment"]:
    """Runs a deployment file while the block runs; tells its progress on stderr.

    Args:
        path: The deployment file.
        port: Of the public service, instead of the file's.
        startup_timeout_s: For the replicas to be ready.
        verbose: Print what the services log.
    """
    from orchestration.config import load_deployment
    from orchestration.local import LocalOptions, local_deployment

    deployment = load_deployment(path)
    if port is not None:
        router = deployment.router.model_copy(update={"grpc_port": port})
        deployment = deployment.model_copy(update={"router": router})
    options = LocalOptions(startup_timeout_s=startup_timeout_s, verbose=verbose)
    with messages().status("starting Ray and the controller") as progress:

        def show(replicas: "Sequence[ReplicaStatus]") -> None:
            progress.update(_summary(replicas))

        with local_deployment(deployment, show, options, str(path.resolve())) as deployed:
            progress.stop()
            yield deployed


def _summary(replicas: "Sequence[ReplicaStatus]") -> str:
    """How many replicas of each tier are ready, such as `target 1/2, drafter 0/1`."""
    desired = Counter(replica.role.value for replica in replicas)
    ready = Counter(replica.role.value for replica in replicas if replica.state.value == "ready")
    return "starting " + ", ".join(f"{role} {ready[role]}/{count}" for role, count in sorted(desired.items()))


def _print_addresses(deployed: "LocalDeployment") -> None:
    aside = messages()
    for replica in deployed.status():
        aside.print(f"{replica.replica:<16} {replica.address}", markup=False)
    aside.print(f"{'registry':<16} {deployed.registry}", markup=False)
    aside.print(f"{'router':<16} {deployed.address}", markup=False)
