"""`flyserve serve`: run a deployment from one line until Ctrl-C."""

import ipaddress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fly.errors import ConfigError
from flyserve.cli.groups import grouped
from flyserve.cli.options import SingleProcess, StartupTimeout, Verbose
from flyserve.cli.terminal import messages, output, reported_errors
from flyserve.cli.up import serve as serve_deployment

EXAMPLES = """Examples:

flyserve serve models/llama-70b --draft models/llama-8b --sub-draft suffix

flyserve serve models/llama-70b --draft suffix

flyserve serve models/llama-8b --draft models/llama-1b --single-process

flyserve serve org/name@main --port 9000 --print-config > deployment.yaml"""

_port = partial(typer.Option, min=0, max=65_535)


@dataclass(frozen=True, slots=True)
class LineOptions:
    """Options that become keys of the deployment file, by their names in `OneLine`."""

    draft: Annotated[
        str | None,
        typer.Option(
            help="Folder or hub name of the drafter; or suffix or ngram, which look tokens up without a model"
            " (a folder of that name: ./suffix). Without it, nothing is drafted."
        ),
    ] = None
    sub_draft: Annotated[
        str | None,
        typer.Option(help="suffix, ngram or none; helps a drafter with a model."),
    ] = None
    replicas: Annotated[int | None, typer.Option(min=1, help="Replicas of the target.")] = None
    host: Annotated[
        str | None, typer.Option(help="Interface to listen on; 0.0.0.0 is all.", show_default="127.0.0.1")
    ] = None
    port: Annotated[int, _port(help="Port of the OpenAI-compatible HTTP API.")] = 8000
    grpc_port: Annotated[int | None, _port(help="Port of the gRPC API.", show_default="50051")] = None
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16.", show_default="bfloat16")] = None
    engine: Annotated[str | None, typer.Option(help="builtin or vllm.", show_default="builtin")] = None
    api_keys: Annotated[Path | None, typer.Option(help="File of API keys, as flyserve token writes it.")] = (
        None
    )


@grouped
def serve(
    target: Annotated[str, typer.Argument(help="Folder of the target, or org/name@revision on the hub.")],
    line: LineOptions,
    allow_anyone: Annotated[
        bool, typer.Option("--allow-anyone", help="Listen beyond this machine without API keys.")
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the deployment file, and start nothing.")
    ] = False,
    startup_timeout_s: StartupTimeout = 120.0,
    verbose: Verbose = False,
    single_process: SingleProcess = False,
) -> None:
    """Serve a model on this machine: Ray, controller, services, router. Ctrl-C stops it.

    The deployment file that this line stands for is printed; flyserve up and flyserve apply take it.
    """
    with reported_errors():
        import yaml

        from orchestration.deployment.one_line import OneLine, deployment_content, one_line_deployment

        if line.host is not None:
            _check_host(line.host, line.api_keys is not None, allow_anyone)
        content = deployment_content(OneLine(target=target, **asdict(line)))
        deployment = one_line_deployment(content)
        text = yaml.safe_dump(content, sort_keys=False).rstrip()
        if print_config:
            return output().print(text, markup=False)
        messages().print(text, markup=False)
        source = f"flyserve serve {target}"
        serve_deployment(deployment, startup_timeout_s, verbose, source, single_process)


def _check_host(host: str, has_keys: bool, allows_anyone: bool) -> None:
    """Refuse to listen beyond this machine without API keys, unless that is wanted; warn of plain text."""
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    if is_local:
        return
    if not has_keys and not allows_anyone:
        raise ConfigError(
            f"--host: is {host}, which others can reach: give --api-keys FILE (flyserve token writes one),"
            " or --allow-anyone"
        )
    clients = "clients with a key" if has_keys else "everyone"
    messages().print(
        f"warning: {host} serves {clients} in plain text; for TLS see security in SECURITY.md",
        markup=False,
        style="yellow",
    )
