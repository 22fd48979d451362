"""`flyserve router`: run a router of a deployment in this process."""

import socket
from pathlib import Path
from typing import Annotated

import typer

from flyserve.cli.cluster.connecting import RayAddress, ask, controller_of
from flyserve.cli.options import GrpcPort, HttpPort, time_option
from flyserve.cli.terminal import reported_errors

EXAMPLES = """Examples:

flyserve router deployment.yaml --registry head:50052"""


def router(
    deployment: Annotated[Path, typer.Argument(help="The file that was applied.")],
    registry: Annotated[
        str | None, typer.Option(help="host:port of the registry; default: ask the controller.")
    ] = None,
    port: GrpcPort = None,
    http_port: HttpPort = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of this router in metrics, traces and logs; default: this machine's name."),
    ] = None,
    start_timeout_s: Annotated[
        float, time_option(min=1, help="Time limit for the first target, in seconds.")
    ] = 120.0,
    ray_address: RayAddress = None,
) -> None:
    """Serve a deployment's public API from this machine; run as many routers as you need.

    With --registry, this machine needs no Ray.
    """
    with reported_errors():
        from orchestration.deployment.file import load_deployment, with_router_ports
        from orchestration.deployment.plan import router_config
        from router.config import RouterConfig
        from router.server import create_host
        from services.common.config import parse
        from services.common.launch import run_service

        # NOTE: a router reads the target's tokenizer; other models need not be on this machine.
        made = with_router_ports(load_deployment(deployment, has_models=False), port, http_port)
        registry = registry or _registry_of(made.name, ray_address)
        name = name or socket.gethostname()
        content = router_config(made, registry, start_timeout_s, made.rollout.drain_s, name)
        config = parse(RouterConfig, content, str(deployment))
        run_service(lambda: create_host(config), config, "router")


def _registry_of(name: str, ray_address: str | None) -> str:
    with controller_of(name, ray_address) as controller:
        return str(ask(controller.address))
