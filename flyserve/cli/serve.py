"""`flyserve serve`: run a deployment from one line until Ctrl-C."""

import ipaddress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from flyserve.cli.groups import grouped
from flyserve.cli.options import STARTUP_TIMEOUT_S, SingleProcess, StartupTimeout, Verbose
from flyserve.cli.terminal import messages, output, reported_errors
from flyserve.cli.up import serve as serve_deployment
from flyserve.core.errors import ConfigError
from flyserve.core.messages import Role
from flyserve.core.types import Mode

EXAMPLES = """Examples:

flyserve serve org/name --draft suffix

flyserve serve org/name --draft org/smaller --mode exact

flyserve serve model.gguf --draft small.gguf

flyserve serve org/name:Q4_K_M --draft suffix

flyserve serve models/target --draft models/drafter --gpus 0 --threads 8

flyserve serve org/name --port 9000 --print-config > deployment.yaml"""

_port = partial(typer.Option, min=0, max=65_535)


def _number_or_auto(text: str, least: int, remedy: str) -> int | str:
    if text == "auto" or (text.isdecimal() and int(text) >= least):
        return text if text == "auto" else int(text)
    raise typer.BadParameter(f"is {text!r}, must be auto or a number of at least {least}: {remedy}")


def _gpus(text: str) -> int | str:
    return _number_or_auto(text, 0, "auto takes all GPUs of this machine, 0 none")


def _threads(text: str) -> int | str:
    return _number_or_auto(text, 1, "auto shares the cores of this machine")


@dataclass(frozen=True, slots=True)
class LineOptions:
    """Options that become keys of the deployment file, by their names in `OneLine`."""

    draft: Annotated[
        str | None,
        typer.Option(
            help="Folder or hub name of the drafter; or suffix, which looks tokens up without a model (a"
            " folder of that name: ./suffix). Without it, nothing is drafted."
        ),
    ] = None
    sub_draft: Annotated[
        str | None,
        typer.Option(metavar="suffix|none", help="Helps a drafter with a model."),
    ] = None
    replicas: Annotated[int | None, typer.Option(min=1, help="Replicas of the target.")] = None
    gpus: Annotated[
        Any, typer.Option(parser=_gpus, metavar="auto|N", help="GPUs of this machine to use; 0: CPUs alone.")
    ] = "auto"
    shards: Annotated[
        int | None,
        typer.Option(
            "--shards",
            "--tensor-parallel-size",
            min=1,
            help="Processes that share the target, each with a GPU; default: over all GPUs.",
        ),
    ] = None
    threads: Annotated[
        Any,
        typer.Option(
            parser=_threads, metavar="auto|N", help="CPU threads of each process; auto shares the cores."
        ),
    ] = "auto"
    quantization: Annotated[
        str | None, typer.Option(help="int8 (builtin engine, CPUs), or a method of vLLM, such as fp8.")
    ] = None
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Longest sequence, in tokens; default: the model's.")
    ] = None
    max_sequences: Annotated[
        int | None, typer.Option(min=1, help="Sequences that a replica holds at once.", show_default="64")
    ] = None
    mode: Annotated[
        Mode | None,
        typer.Option(
            help="Of requests that set none. fly: the rule FLy; exact: drafts change no token; plain: none.",
            show_default="fly",
        ),
    ] = None
    served_model_name: Annotated[
        str | None, typer.Option(help="Name of the model in requests; default: that of its folder.")
    ] = None
    host: Annotated[
        str | None, typer.Option(help="Interface to listen on; 0.0.0.0 is all.", show_default="127.0.0.1")
    ] = None
    port: Annotated[int, _port(help="Port of the OpenAI-compatible HTTP API.")] = 8000
    grpc_port: Annotated[int | None, _port(help="Port of the gRPC API.", show_default="50051")] = None
    dtype: Annotated[
        str | None, typer.Option(metavar="float32|bfloat16", help="Of computation.", show_default="bfloat16")
    ] = None
    engine: Annotated[
        str | None,
        typer.Option(metavar="builtin|vllm|llamacpp", help="Of target and drafter; a GGUF file has its own."),
    ] = None
    api_keys: Annotated[Path | None, typer.Option(help="File of API keys, as flyserve token writes it.")] = (
        None
    )


@grouped
def serve(
    target: Annotated[
        str, typer.Argument(help="Folder of the target, its GGUF file, or org/name of the hub.")
    ],
    line: LineOptions,
    allow_anyone: Annotated[
        bool, typer.Option("--allow-anyone", help="Listen beyond this machine without API keys.")
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the deployment file, and start nothing.")
    ] = False,
    startup_timeout_s: StartupTimeout = STARTUP_TIMEOUT_S,
    verbose: Verbose = False,
    single_process: SingleProcess = False,
) -> None:
    """Serve a model on this machine: Ray, controller, services, router. Ctrl-C stops it.

    The deployment file that this line stands for is printed; flyserve up and flyserve apply take it.
    """
    with reported_errors():
        import yaml

        from orchestration.machine.serving import machine_with, settled_line

        if line.host is not None:
            _check_host(line.host, line.api_keys is not None, allow_anyone)
        machine = machine_with(line.gpus)
        content, deployment = settled_line({"target": target, **asdict(line)}, machine)
        text = yaml.safe_dump(content, sort_keys=False).rstrip()
        if print_config:
            return output().print(text, markup=False)
        messages().print(text, markup=False)
        source, names = f"flyserve serve {target}", {Role.TARGET: target, Role.DRAFTER: line.draft}
        serve_deployment(deployment, machine, startup_timeout_s, verbose, source, single_process, names)


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
