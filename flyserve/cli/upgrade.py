"""`flyserve upgrade`: upgrade a release of the chart without a gap."""

from functools import reduce
from pathlib import Path
from typing import Annotated, Any

import typer

from flyserve.cli.options import time_option
from flyserve.cli.terminal import output, reported_errors
from flyserve.core.errors import ConfigError

EXAMPLES = """Examples:

flyserve upgrade demo helm/flyserve --namespace serving --values values.yaml"""


def upgrade(
    release: Annotated[str, typer.Argument(help="Name of the helm release.")],
    chart: Annotated[str, typer.Argument(help="The chart: a folder, an archive or a name that helm knows.")],
    values: Annotated[
        list[Path] | None,
        typer.Option("--values", help="Values file; may repeat. Default: the values that the release has."),
    ] = None,
    namespace: Annotated[str, typer.Option(help="Namespace of the release.")] = "default",
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace the running pods of Ray even if they may stay as they are."),
    ] = False,
    timeout_s: Annotated[
        float, time_option(min=1, help="Time limit of each step: loading weights, or finishing requests.")
    ] = 3600.0,
) -> None:
    """Upgrade a release of the chart, by helm and kubectl, without a failed request.

    If running pods would have to change (image, Ray's version, size, fault tolerance), a second Ray cluster
    starts with the new values, routers move to it, and the first one is removed; a failed step returns to
    what ran before.
    It needs room for both clusters at once.
    """
    with reported_errors():
        from orchestration.release.commands import Release
        from orchestration.release.upgrade import upgrade as run
        from orchestration.release.values import layered

        given = reduce(layered, map(_read, values)) if values else None
        here = Release(release, namespace, timeout_s)
        run(here, chart, given, timeout_s, lambda line: output().print(line, markup=False), replace=replace)


def _read(file: Path) -> dict[str, Any]:
    from services.common.config import read_yaml

    try:
        found = read_yaml(file)
    except ConfigError as error:
        raise ConfigError(f"--values {error}") from None
    if not isinstance(found, dict | None):
        raise ConfigError(f"--values {file}: is no mapping of keys to values")
    return found or {}
