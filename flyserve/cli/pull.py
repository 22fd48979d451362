"""`flyserve pull`: fill a folder with a model, once."""

from pathlib import Path
from typing import Annotated

import typer

from flyserve.cli.options import time_option
from flyserve.cli.terminal import messages, output, reported_errors

EXAMPLES = """Examples:

flyserve pull hf://org/name@revision /models/name

flyserve pull s3://bucket/name /models/name"""


def pull(
    model: Annotated[
        str,
        typer.Argument(help="hf://org/name@revision, a folder, or the URL of one, such as s3://bucket/name."),
    ],
    destination: Annotated[Path, typer.Argument(help="Folder to fill; absent, or a copy of the same model.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Hash the files of a copy that is complete.")
    ] = False,
    wait_only: Annotated[
        bool, typer.Option("--wait-only", help="Fetch nothing: wait until another process has filled it.")
    ] = False,
    timeout_s: Annotated[float, time_option(min=0, help="Time limit of --wait-only, in seconds.")] = 3600.0,
) -> None:
    """Fill a folder with a model: configuration, tokenizer and weights.

    Each file is checked by its hash, if the source names one: the model hub does, and a folder with
    SHA256SUMS. The folder appears when it is complete. If the command was interrupted, run it again: it goes
    on with the file at which it stopped. URLs need the client of fsspec for their scheme, such as s3fs.
    """
    with reported_errors():
        from services.common.fetching.fetch import (
            canonical_name,
            fetch_model,
            source_of,
            wait_until_filled,
        )

        name = canonical_name(model)
        if wait_only:
            messages().print(f"waiting until {destination} holds {name}", markup=False)
            return wait_until_filled(name, destination, timeout_s)
        manifest = fetch_model(source_of(name), destination, _report, verify)
        total = sum(file.size for file in manifest.files)
        output().print(
            f"{destination}: {name}, {len(manifest.files)} files, {total / 1e9:.2f} GB", markup=False
        )


def _report(name: str, done: int, total: int) -> None:
    messages().print(f"{done / 1e9:.2f} of {total / 1e9:.2f} GB: {name}", markup=False)
