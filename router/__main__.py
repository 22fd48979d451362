"""`python -m router`: a router without Ray."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fly.errors import ConfigError
from router.config import RouterConfig
from router.policies import POLICIES
from router.server import create_host
from services.common import options
from services.common.config import load_yaml, mapping, parse
from services.common.launch import fail, run_service


def main(
    config: Annotated[Path | None, typer.Option(help="YAML file; the other options override it.")] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="The target's model, for its tokenizer: a folder or org/name@revision."),
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="host:port of a target, or dns:host:port; may repeat.")
    ] = None,
    drafter: Annotated[list[str] | None, typer.Option(help="The same of a drafter; may repeat.")] = None,
    registry: Annotated[str | None, typer.Option(help="host:port of the registry.")] = None,
    host: Annotated[str | None, typer.Option(help="Interface to bind to; default 127.0.0.1.")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="Default 50051; 0 takes a free one.")] = None,
    http_port: Annotated[
        int | None, typer.Option(help="Of the OpenAI-compatible face; 0 takes a free one, default none.")
    ] = None,
    balancing: Annotated[str | None, typer.Option(help=f"{', '.join(POLICIES)}.")] = None,
    max_concurrent: Annotated[int | None, typer.Option(help="Requests that decode at a time.")] = None,
    max_queued: Annotated[int | None, typer.Option(help="Requests that may wait.")] = None,
    security: Annotated[
        str | None, typer.Option(help="How it protects itself, such as '{auth_tokens_file: keys.yaml}'.")
    ] = None,
    telemetry: options.Telemetry = None,
) -> None:
    """Serve text generation over gRPC, and over HTTP where it has a port."""
    flags: dict[str, Any] = {
        "model": model,
        "targets": target,
        "drafters": drafter,
        "registry": registry,
        "host": host,
        "grpc_port": grpc_port,
        "http_port": http_port,
        "balancing": balancing,
        "max_concurrent": max_concurrent,
        "max_queued": max_queued,
    }
    try:
        flags["security"] = security and mapping(security, "security")
        flags["telemetry"] = telemetry and mapping(telemetry, "telemetry")
        made = _configure(config, {key: value for key, value in flags.items() if value not in (None, [])})
    except ConfigError as error:
        fail(str(error))
    run_service(lambda: create_host(made), made.grace_s, "router", made.telemetry)


def _configure(file: Path | None, flags: dict[str, Any]) -> RouterConfig:
    if file is None:
        return parse(RouterConfig, flags, "flags")
    from_file = load_yaml(RouterConfig, file).model_dump(exclude_unset=True)
    return parse(RouterConfig, {**from_file, **flags}, str(file))


if __name__ == "__main__":
    typer.run(main)
