"""`flyserve up`: run a whole deployment on this machine until Ctrl-C."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from flyserve.cli.options import GrpcPort, HttpPort, SingleProcess, StartupTimeout, Verbose
from flyserve.cli.terminal import messages, output, reported_errors

if TYPE_CHECKING:
    from rich.progress import Task

    from orchestration.control.status import ReplicaStatus
    from orchestration.deployment.file import Deployment
    from orchestration.local.runner import LocalDeployment

DEMO = Path(__file__).resolve().parent.parent.parent / "demo" / "deployment.yaml"

EXAMPLES = """Examples:

flyserve up

flyserve up deployment.yaml --port 50051 --verbose

flyserve up --single-process"""


def up(
    deployment: Annotated[
        Path | None, typer.Argument(help="Deployment file; default: the shipped demo.", show_default=False)
    ] = None,
    port: GrpcPort = None,
    http_port: HttpPort = None,
    startup_timeout_s: StartupTimeout = 120.0,
    verbose: Verbose = False,
    single_process: SingleProcess = False,
) -> None:
    """Start a deployment on this machine: Ray, controller, services, router. Ctrl-C stops it."""
    with reported_errors():
        path = deployment or DEMO
        loaded = _loaded(path, port, http_port)
        serve(loaded, startup_timeout_s, verbose, str(path.resolve()), single_process)


def serve(
    deployment: "Deployment", startup_timeout_s: float, verbose: bool, source: str, single_process: bool
) -> None:
    """Serve a deployment on this machine until Ctrl-C; the last line of stdout is `ready ADDRESS`.

    Args:
        deployment: What to serve.
        startup_timeout_s: Time limit of each stage of the start; a single process has none.
        verbose: Print what the services log.
        source: Origin of the deployment, for its status.
        single_process: Serve from this process, without Ray.
    """
    if single_process:
        return _serve_single_process(deployment, verbose)
    running = running_deployment(deployment, startup_timeout_s, verbose, source)
    try:
        serve_until_interrupted(running, partial(_print_stopping, deployment))
    except KeyboardInterrupt:
        messages().print("stopped")


def _serve_single_process(deployment: "Deployment", verbose: bool) -> None:
    from orchestration.local.single_process import SingleProcess as Serving
    from orchestration.local.single_process import run_single_process

    def show_loading(replica: str) -> None:
        messages().print(f"loading {replica}", markup=False)

    def show_ready(serving: Serving) -> None:
        _print_router(serving.address, serving.http_url, serving.speculation)
        _print_ready(serving.address)

    run_single_process(deployment, show_loading, show_ready, partial(_print_stopping, deployment), verbose)
    messages().print("stopped")


def serve_until_interrupted(
    deployment: "AbstractContextManager[LocalDeployment]", on_stop: Callable[[], None]
) -> None:
    """Start a deployment, print its addresses, and wait until it is ended.

    `on_stop` is called when a signal arrives, before the running responses finish.
    """
    with deployment as deployed:
        _print_addresses(deployed)
        _print_ready(deployed.address)
        try:
            deployed.wait(partial(messages().print, markup=False))
        except KeyboardInterrupt:
            on_stop()
            raise
        messages().print(f"{deployed.name} was ended by flyserve down: stopped", markup=False)


def _print_stopping(deployment: "Deployment") -> None:
    drain_s = deployment.rollout.drain_s
    messages().print(f"stopping: running responses have {drain_s:g} s to finish; a second Ctrl-C ends them")


def _print_ready(address: str) -> None:
    console = output()
    console.print(f"ready {address}", markup=False)
    console.file.flush()


@contextmanager
def running(
    path: Path,
    grpc_port: int | None = None,
    http_port: int | None = None,
    startup_timeout_s: float = 120.0,
    verbose: bool = False,
) -> Iterator["LocalDeployment"]:
    """Run a deployment file while the block runs, as `running_deployment` does; None keeps a port."""
    deployment = _loaded(path, grpc_port, http_port)
    with running_deployment(deployment, startup_timeout_s, verbose, str(path.resolve())) as deployed:
        yield deployed


def _loaded(path: Path, grpc_port: int | None, http_port: int | None) -> "Deployment":
    from orchestration.deployment.file import load_deployment, with_router_ports

    return with_router_ports(load_deployment(path), grpc_port, http_port)


@contextmanager
def running_deployment(
    deployment: "Deployment", startup_timeout_s: float, verbose: bool, source: str
) -> Iterator["LocalDeployment"]:
    """Run a deployment while the block runs; print the progress on stderr.

    `verbose` prints what the services log; `source` names the origin of the deployment in its status.
    """
    from orchestration.local.runner import LocalOptions, local_deployment

    options = LocalOptions(startup_timeout_s=startup_timeout_s, verbose=verbose)
    with (
        start_progress(messages(), startup_timeout_s) as (show, end),
        local_deployment(deployment, show, options, source) as deployed,
    ):
        end()
        yield deployed


def _print_addresses(deployed: "LocalDeployment") -> None:
    aside = messages()
    status = deployed.status()
    for replica in status.replicas:
        aside.print(f"{replica.replica:<16} {replica.address}", markup=False)
    aside.print(f"{'registry':<16} {deployed.registry}", markup=False)
    _print_router(deployed.address, deployed.http_url, status.speculation)


def _print_router(address: str, http_url: str | None, speculation: str) -> None:
    aside = messages()
    aside.print(f"{'router':<16} {address}", markup=False)
    if http_url is not None:
        aside.print(f"{'OpenAI API':<16} {http_url}/v1", markup=False)
        aside.print(f"{'playground':<16} {http_url}/", markup=False)
    if speculation:
        aside.print(speculation, markup=False)


Show = Callable[["Sequence[ReplicaStatus]"], None]
"""Show the state of every replica; called whenever it changes."""

_BEGINNING = "starting Ray and the controller"


@contextmanager
def start_progress(console: Console, timeout_s: float) -> Iterator[tuple[Show, Callable[[], None]]]:
    """Yield a function that shows the replicas as they start, and one that removes the display.

    `timeout_s` is the time limit of the start, which the display counts down.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, _TimeLeft(timeout_s), console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task(_BEGINNING, total=None)

        def show(replicas: "Sequence[ReplicaStatus]") -> None:
            ready = sum(replica.state.value == "ready" for replica in replicas)
            progress.update(bar, description=summary(replicas), total=len(replicas) or None, completed=ready)

        yield show, progress.stop


class _TimeLeft(TextColumn):
    """The time left until the time limit of the start."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__("")
        self._timeout_s = timeout_s

    def render(self, task: "Task") -> Text:
        left_s = max(0.0, self._timeout_s - (task.elapsed or 0.0))
        return Text(f"at most {left_s:.0f} s left", style="progress.remaining")


def summary(replicas: "Sequence[ReplicaStatus]") -> str:
    """Return the ready replicas of each tier, such as `starting drafter 0/1, target 1/2`."""
    desired = Counter(replica.role.value for replica in replicas)
    ready = Counter(replica.role.value for replica in replicas if replica.state.value == "ready")
    listed = ", ".join(f"{role} {ready[role]}/{count}" for role, count in sorted(desired.items()))
    return f"starting {listed}" if listed else _BEGINNING
