"""`python -m services.target`: a target replica without Ray."""

from typing import Annotated

import typer

from fly.errors import ConfigError
from services.common import options
from services.common.config import mapping, parse
from services.common.launch import fail, run_service
from services.target.config import TargetConfig


def main(
    model: options.Model = None,
    simulated: options.Simulated = None,
    address: options.Address = "127.0.0.1:0",
    dtype: options.Dtype = "bfloat16",
    max_sequences: options.MaxSequences = 64,
    kv_tokens: options.KvTokens = 65536,
    threads: options.Threads = 1,
    device: options.Device = "cpu",
    shards: Annotated[int, typer.Option(help="Processes of this machine that share the model.")] = 1,
    security: options.Security = None,
    telemetry: options.Telemetry = None,
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
