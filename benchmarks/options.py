"""Options that the command lines of several benchmarks have."""

from pathlib import Path
from typing import Annotated

import typer

Resume = Annotated[
    bool, typer.Option(help="Take over what a run of the same code measured before it broke off.")
]
Folder = Annotated[
    Path | None, typer.Option("--output", file_okay=False, help="Where report, figures and charts go.")
]
Verbose = Annotated[bool, typer.Option(help="Print what the services log.")]
