"""`flyserve up`: run a whole deployment on this machine until Ctrl-C."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Annotated

import typer

from flyserve.cli.notes import next_step, print_notes
from flyserve.cli.options import STARTUP_TIMEOUT_S, GrpcPort, HttpPort, SingleProcess, StartupTimeout, Verbose
from flyserve.cli.start_display import download_display, start_display
from flyserve.cli.terminal import ended_at_once, messages, output, print_message, reported_errors
from flyserve.server import demo_file

if TYPE_CHECKING:
    from flyserve.core.messages import Role
    from orchestration.deployment.file import Deployment
    from orchestration.local.runner import LocalDeployment
    from services.common.machine.machine import Machine

_SILENT_STOP_S = 3.0
"""Time after which a stop names what it waits for; a router without responses ends sooner."""

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
    startup_timeout_s: StartupTimeout = STARTUP_TIMEOUT_S,
    verbose: Verbose = False,
    single_process: SingleProcess = False,
) -> None:
    """Start a deployment on this machine: Ray, controller, services, router. Ctrl-C stops it."""
    with reported_errors():
        path = deployment or demo_file()
        loaded, machine = _loaded(path, port, http_port)
        serve(loaded, machine, startup_timeout_s, verbose, str(path.resolve()), single_process)


def serve(
    deployment: "Deployment",
    machine: "Machine",
    startup_timeout_s: float,
    verbose: bool,
    source: str,
    single_process: bool,
    names: "Mapping[Role, str | None] | None" = None,
) -> None:
    """Serve a deployment on this machine until Ctrl-C; the last line of stdout is `ready ADDRESS`.

    Args:
        deployment: What to serve, with numbers in the place of `auto`.
        machine: The machine that it runs on.
        startup_timeout_s: Time limit of each stage of the start; a single process has none.
        verbose: Print what the services log.
        source: Origin of the deployment, for its status.
        single_process: Serve from this process, without Ray.
        names: Names of the hub, as people write them, that the models were resolved from.
    """
    from orchestration.local.ports import require_free_ports

    require_free_ports(deployment)  # before a download, which can take long
    _fetch_models(deployment, names or {})
    print_notes(deployment, machine)
    if single_process:
        return _serve_single_process(deployment, verbose)
    running = running_deployment(deployment, startup_timeout_s, verbose, source, machine)
    try:
        serve_until_interrupted(running, partial(print_stopping, deployment), next_step(deployment))
    except KeyboardInterrupt:
        print_message("stopped")


def _serve_single_process(deployment: "Deployment", verbose: bool) -> None:
    from orchestration.local.single_process import SingleProcess as Serving
    from orchestration.local.single_process import run_single_process

    def show_loading(replica: str) -> None:
        messages().print(f"loading {replica}", markup=False)

    def show_ready(serving: Serving) -> None:
        _print_router(serving.address, serving.http_url, serving.speculation)
        messages().print(next_step(deployment)(serving.address), markup=False)
        _print_ready(serving.address)

    run_single_process(deployment, show_loading, show_ready, partial(print_stopping, deployment), verbose)
    print_message("stopped")


def serve_until_interrupted(
    deployment: "AbstractContextManager[LocalDeployment]",
    on_stop: Callable[[Callable[[], bool]], object],
    hint: Callable[[str], str],
) -> None:
    """Start a deployment, print its addresses, and wait until it is ended.

    `on_stop` is called when a signal arrives, before the running responses finish, with a function that
    returns True once they have. `hint` returns a line for people from the address of the gRPC API.
    """
    with deployment as deployed:
        _print_addresses(deployed)
        messages().print(hint(deployed.address), markup=False)
        _print_ready(deployed.address)
        try:
            deployed.wait(print_message)
        except KeyboardInterrupt:
            on_stop(deployed.has_drained)
            raise
        print_message(f"{deployed.name} was ended by flyserve down: stopped")


def print_stopping(
    deployment: "Deployment", has_drained: Callable[[], bool], wait_s: float = _SILENT_STOP_S
) -> Timer:
    """Say at once that a deployment stops; after `wait_s`, how long the responses that still run may take."""

    def explain() -> None:
        if not has_drained():
            limit = f"running responses have {deployment.rollout.drain_s:g} s to finish"
            print_message(f"{limit}; a second Ctrl-C ends them")

    print_message("stopping")
    timer = Timer(wait_s, explain)
    timer.daemon = True
    timer.start()
    return timer


def _print_ready(address: str) -> None:
    console = output()
    console.print(f"ready {address}", markup=False)
    console.file.flush()


@contextmanager
def running(
    path: Path,
    grpc_port: int | None = None,
    http_port: int | None = None,
    startup_timeout_s: float = STARTUP_TIMEOUT_S,
    verbose: bool = False,
) -> Iterator["LocalDeployment"]:
    """Run a deployment file while the block runs, as `running_deployment` does; None keeps a port."""
    deployment, machine = _loaded(path, grpc_port, http_port)
    source = str(path.resolve())
    with running_deployment(deployment, startup_timeout_s, verbose, source, machine) as deployed:
        yield deployed


def _loaded(path: Path, grpc_port: int | None, http_port: int | None) -> "tuple[Deployment, Machine]":
    """Return the deployment of a file on this machine, and the machine."""
    from orchestration.deployment.file import load_deployment, with_router_ports
    from orchestration.machine.serving import settled_deployment
    from services.common.machine.machine import find_machine

    machine = find_machine()
    deployment = settled_deployment(load_deployment(path), machine)
    return with_router_ports(deployment, grpc_port, http_port), machine


def _fetch_models(deployment: "Deployment", names: "Mapping[Role, str | None]") -> None:
    """Download the models of the hub that this machine does not have; show the bytes and the time left."""
    from orchestration.deployment.tiers import ModelTier
    from services.common.hub import fetch
    from services.common.model_source import is_hub_id

    for role, tier in deployment.tiers.items():
        if isinstance(tier, ModelTier) and is_hub_id(tier.model):
            # NOTE: the client's threads would finish their files first; a later call goes on with them.
            with ended_at_once(), download_display(messages(), str(tier.model)) as report:
                fetch(tier.model, report, names.get(role) or "")


@contextmanager
def running_deployment(
    deployment: "Deployment",
    startup_timeout_s: float,
    verbose: bool,
    source: str,
    machine: "Machine | None" = None,
) -> Iterator["LocalDeployment"]:
    """Run a deployment while the block runs; print the progress on stderr.

    `verbose` prints what the services log; `source` names the origin of the deployment in its status;
    `machine` is the one that it was settled for, if it was.
    """
    from orchestration.local.runner import LocalOptions, local_deployment

    options = LocalOptions(startup_timeout_s=startup_timeout_s, verbose=verbose, machine=machine)
    with (
        start_display(messages()) as (show, end),
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
