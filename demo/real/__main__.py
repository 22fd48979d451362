"""`make real`: fetch the real models, serve SmolLM2, hold a conversation, stop. `--fetch` only fetches."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from demo.real.conversation import converse
from demo.real.fetch import MODELS, ensure_model
from flyserve.cli.terminal import messages, output, reported_errors
from flyserve.cli.up import running

_DEPLOYMENT = Path(__file__).with_name("deployment.yaml")


def main(
    fetch: Annotated[bool, typer.Option("--fetch", help="Fetch and convert the models, then end.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print the logs of the services.")] = False,
) -> None:
    """Serve SmolLM2-135M-Instruct and talk to it; it and Gemma 3 270M are fetched once."""
    with reported_errors():
        for model in MODELS:
            report = partial(messages().print, markup=False)
            report(f"model {ensure_model(model, report=report)}")
        if not fetch:
            _talk(verbose)


def _talk(verbose: bool) -> None:
    with running(_DEPLOYMENT, grpc_port=0, http_port=0, verbose=verbose) as deployed:
        assert deployed.http_url is not None
        for speaker, text in converse(deployed.address, deployed.http_url):
            output().print(f"{speaker}: {text}", markup=False)


if __name__ == "__main__":
    typer.run(main)
