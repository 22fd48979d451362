"""`python -m services.drafter`: a drafter replica without Ray."""

from typing import Annotated

import typer

from fly.errors import ConfigError
from services.common import options
from services.common.config import mapping, parse
from services.common.launch import fail, run_service
from services.drafter.config import DrafterConfig


def main(
    model: options.Model = None,
    simulated: options.Simulated = None,
    address: options.Address = "127.0.0.1:0",
    dtype: options.Dtype = "bfloat16",
    max_sequences: options.MaxSequences = 64,
    kv_tokens: options.KvTokens = 65536,
    threads: options.Threads = 1,
    device: options.Device = "cpu",
    sub_drafter: Annotated[str | None, typer.Option(help="host:port of a sub-drafter.")] = None,
    registry: Annotated[str | None, typer.Option(help="host:port of the registry, instead.")] = None,
    role: Annotated[
        str, typer.Option(help="drafter, or sub_drafter for a model that helps one.")
    ] = "drafter",
    draft_ahead: Annotated[
        str, typer.Option(help="Draft on while the target verifies: auto, on, off.")
    ] = "auto",
    security: options.Security = None,
    telemetry: options.Telemetry = None,
) -> None:
    """Serve drafts by a small model over gRPC."""
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
            "sub_drafter": sub_drafter,
            "registry": registry,
            "role": role,
            "draft_ahead": draft_ahead,
            "security": mapping(security or "{}", "security"),
            "telemetry": mapping(telemetry or "{}", "telemetry"),
        }
        config = parse(DrafterConfig, flags, "flags")
    except ConfigError as error:
        fail(str(error))
    from services.drafter.servicer import create_host

    run_service(lambda: create_host(config), config.grace_s, config.role, config.telemetry)


if __name__ == "__main__":
    typer.run(main)
