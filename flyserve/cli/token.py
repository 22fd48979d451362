"""`flyserve token`: makes an API key."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from flyserve.cli.terminal import output, print_message, reported_errors
from flyserve.core.errors import ConfigError

EXAMPLES = """Examples:

flyserve token alice

flyserve token batch --file /etc/flyserve/keys.yaml --max-concurrent 8 --requests-per-minute 600"""


def token(
    name: Annotated[str, typer.Argument(help="Name of the key's owner: letters, digits, '.', '_', '-'.")],
    file: Annotated[
        Path, typer.Option(help="Of the keys; made where it is missing, readable by its owner only.")
    ] = Path("keys.yaml"),
    max_concurrent: Annotated[
        int | None, typer.Option(min=1, help="Requests in work or waiting, at one router.")
    ] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="At one router.")] = None,
) -> None:
    """Make an API key: print its token, this once, and add its hash to the file of keys.

    Routers read the file named by security.auth_tokens_file, and read it again when it changes. To revoke a
    key, take its entry out.
    """
    from router.security.keys import issue_key

    limits = {"max_concurrent": max_concurrent, "requests_per_minute": requests_per_minute}
    with reported_errors():
        if sys.stdout is None:  # closed
            raise ConfigError("standard output: is closed, and the token is shown only there")
        issue_key(file, name, limits, lambda secret: output().print(secret, markup=False))
        print_message(f"{file} now lets {name} in; the token is shown only here")
