"""`python -m services.target`: a target replica without Ray."""

from typing import Annotated

import typer

from fly.errors import ConfigError
from services.common.config import mapping, parse
from services.common.launch import fail, run_service
from services.target.config import TargetConfig


def main(
    model: Annotated[str | None, typer.Option(help="Folder of the model, or org/name@revision.")] = None,
    simulated: Annotated[
        str | None, typer.Option(help="Instead: parameters of a simulated model, such as '{base_s: 0.02}'.")
    ] = None,
    address: Annotated[str, typer.Option(help="host:port; port 0 takes a free one.")] = "127.0.0.1:0",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "bfloat16",
    max_sequences: Annotated[int, typer.Option(help="Sequences that may be open at once.")] = 64,
    kv_tokens: Annotated[int, typer.Option(help="KV cache positions for all of them.")] = 65536,
    threads: Annotated[int, typer.Option(help="CPU threads of a forward.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    shards: Annotated[int, typer.Option(help="Processes of this machine that share the model.")] = 1,
    security: Annotated[
        str | None,
        typer.Option(help="How it protects itself, such as '{tls: {certificate: ..., key: ..., ca: ...}}'."),
    ] = None,
    telemetry: Annotated[
        str | None, typer.Option(help="What it tells of itself, such as '{metrics_port: 9400}'.")
    ] = None,
) -> None:
    """Serve verification by a target model over gRPC."""
    try:
        flags = {
            "model": model,
            "simulated": simulated and mapping(simulated, "simulated"),
            "address": address,
            "dtype": dtype,
            "max_sequences": max_sequences,
            "kv_tokens": kv_tokens,
            "threads": threads,
            "device": device,
            "shards": shards,
            "security": mapping(security or "{}", "security"),
            "telemetry": mapping(telemetry or "{}", "telemetry"),
        }
        config = parse(TargetConfig, flags, "flags")
    except ConfigError as error:
        fail(str(error))
    from services.target.servicer import create_host

    run_service(lambda: create_host(config), config.grace_s, "target", config.telemetry)


if __name__ == "__main__":
    typer.run(main)
