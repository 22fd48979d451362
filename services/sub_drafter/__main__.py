"""`python -m services.sub_drafter`: a sub-drafter replica without Ray."""

from typing import Annotated

import typer

from fly.errors import ConfigError
from services.common import options
from services.common.config import mapping, parse
from services.common.launch import fail, run_service
from services.sub_drafter.config import SubDrafterConfig
from services.sub_drafter.servicer import create_host


def main(
    engine: Annotated[str, typer.Option(help="How it proposals: ngram or suffix.")] = "ngram",
    address: options.Address = "127.0.0.1:0",
    min_ngram: Annotated[int, typer.Option(help="Shortest suffix that counts as a match.")] = 2,
    max_ngram: Annotated[int, typer.Option(help="Longest suffix that is looked up.")] = 5,
    response_cache_tokens: Annotated[
        int, typer.Option(help="Tokens of finished responses that suffix remembers.")
    ] = 10_000_000,
    security: options.Security = None,
    telemetry: options.Telemetry = None,
) -> None:
    """Serve proposals by look-up over gRPC."""
    try:
        flags = {
            "engine": engine,
            "address": address,
            "min_ngram": min_ngram,
            "max_ngram": max_ngram,
            "response_cache_tokens": response_cache_tokens,
            "security": mapping(security or "{}", "security"),
            "telemetry": mapping(telemetry or "{}", "telemetry"),
        }
        config = parse(SubDrafterConfig, flags, "flags")
    except ConfigError as error:
        fail(str(error))
    run_service(lambda: create_host(config), config.grace_s, "sub_drafter", config.telemetry)


if __name__ == "__main__":
    typer.run(main)
