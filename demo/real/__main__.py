"""`make real`: fetch SmolLM2, serve it, hold a short conversation, stop. `--fetch` only fetches it."""

from pathlib import Path
from typing import Annotated

import typer

from demo.real.conversation import converse
from demo.real.fetch import ensure_model, is_fetched
from flyserve.cli.terminal import messages, output, reported_errors
from flyserve.cli.up import running

_DEPLOYMENT = Path(__file__).with_name("deployment.yaml")


def main(
    fetch: Annotated[bool, typer.Option("--fetch", help="Fetch and convert the model, then end.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print the logs of the services.")] = False,
) -> None:
    """Serve SmolLM2-135M-Instruct and talk to it; the model is fetched once."""
    with reported_errors():
        if not is_fetched():
            messages().print("fetching SmolLM2-135M-Instruct (93 MB) and converting it", markup=False)
        folder = ensure_model()
        messages().print(f"model {folder}", markup=False)
        if not fetch:
            _talk(verbose)


def _talk(verbose: bool) -> None:
    with running(_DEPLOYMENT, grpc_port=0, http_port=0, verbose=verbose) as deployed:
        assert deployed.http_url is not None
        for speaker, text in converse(deployed.address, deployed.http_url):
            output().print(f"{speaker}: {text}", markup=False)


if __name__ == "__main__":
    typer.run(main)
