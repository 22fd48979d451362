"""`flyserve status`: show every replica of a deployment, live."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from flyserve.cli.cluster.connecting import Name, RayAddress, controller_of, read_status
from flyserve.cli.options import time_option
from flyserve.cli.show import print_json
from flyserve.cli.terminal import output, reported_errors
from flyserve.cli.watching import keep_printing, keep_watching

if TYPE_CHECKING:
    from flyserve.core.messages import Load
    from orchestration.control.status import DeploymentStatus, ReplicaStatus

EXAMPLES = """Examples:

flyserve status --watch

flyserve status --json | jq .tiers"""


def status(
    name: Name = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    every_s: Annotated[float, time_option(min=0.1, help="Seconds between two refreshes.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per refresh.")] = False,
    ray_address: RayAddress = None,
) -> None:
    """Show a deployment's tiers and replicas: node, state, load, last fault and its remedy."""
    with reported_errors(), controller_of(name, ray_address) as controller:
        if not watch:
            look = read_status(controller)
            print_json(look) if as_json else output().print(status_view(look))
        elif as_json:
            keep_printing(lambda: read_status(controller), every_s)
        else:
            keep_watching(lambda: status_view(read_status(controller), faults_first=True), every_s)


_STYLES = {
    "ready": "green",
    "starting": "cyan",
    "draining": "cyan",
    "pending": "yellow",
    "unreachable": "yellow",
    "restarting": "yellow",
    "failed": "red",
}


_HEADINGS = ("replica", "start", "state", "since", "node", "address", "sequences", "queued", "tokens held")


def status_view(status: "DeploymentStatus", faults_first: bool = False) -> RenderableType:
    """Return the whole view; `faults_first` is for a display that leaves out what it has no room for."""
    starts = status.controller_starts
    head = f"{status.name}: registry {status.registry}, controller started {starts} time{'s' * (starts > 1)}"
    lines = (*fault_lines(status), *_autoscaling(status), *status.notes, status.speculation)
    notes = [Text(line) for line in lines if line]
    table = _replicas(status)
    rest = (*notes, table) if faults_first else (table, *notes)
    return Group(Text(head), Text(summary(status)), *rest)


def summary(status: "DeploymentStatus") -> str:
    """Return the ready replicas of each tier, such as `target 1/2 (1 to be replaced), drafter 0/1`."""
    return ", ".join(
        f"{tier.role.value} {tier.ready}/{tier.desired}"
        + (f" on {tier.engine}" if tier.engine else "")
        + (f" ({tier.outdated} to be replaced)" if tier.outdated else "")
        for tier in status.tiers
    )


def is_complete(status: "DeploymentStatus") -> bool:
    """Return whether all desired replicas serve and no others run.

    In an autoscaled tier with `min` of them, one at least, others may wait for room or drain.
    """
    enough = {
        tier.role
        for tier in status.tiers
        if (how := tier.autoscaling) is not None and tier.ready >= max(how.min, 1)
    }
    return all(
        (row.state.value == "ready" and row.is_current)
        or (row.role in enough and row.state.value in ("pending", "draining"))
        for row in status.replicas
    )


def _replicas(status: "DeploymentStatus") -> Text:
    """Return one line per replica; wide ones are wrapped, so that nothing is cut."""
    rows = [_HEADINGS, *map(_cells, status.replicas)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = [Text(_line(_HEADINGS, widths), style="dim")]
    for row, cells in zip(status.replicas, rows[1:], strict=True):
        lines.append(Text(_line(cells, widths)))
        lines[-1].highlight_words([cells[2]], _STYLES[row.state.value])
    return Text("\n").join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _cells(row: "ReplicaStatus") -> tuple[str, ...]:
    load = row.load
    carried = (str(load.sequences), str(load.queued), _held(load)) if row.address else ("-", "-", "-")
    state = row.state.value if row.is_current else f"{row.state.value} (outdated)"
    where = (row.node or "-", row.address or "-")
    return row.replica, str(row.generation), state, _duration(row.since_s), *where, *carried


def _held(load: "Load") -> str:
    """Return the held share of the tokens that fit: in the KV cache, or in the memory of a look-up."""
    most = load.kv_capacity
    if not most:
        return "-"
    rounded = f"{most}" if most < 10_000 else f"{most / 1e3:.0f}k" if most < 1e6 else f"{most / 1e6:.1f}M"
    return f"{load.kv_used / most:.0%} of {rounded}"


def _autoscaling(status: "DeploymentStatus") -> Iterator[str]:
    """Yield the desired replicas of each autoscaled tier, with the limits and the reason."""
    for tier in status.tiers:
        if (how := tier.autoscaling) is not None:
            yield f"{tier.role.value}: {tier.desired} replicas of {how.min} to {how.max}; {how.reason}"


def fault_lines(status: "DeploymentStatus") -> Iterator[str]:
    """Yield the fault of each faulty replica, and its remedy."""
    for row in status.replicas:
        if row.detail:
            yield f"{row.replica}: {row.detail}" + (f"; {row.remedy}" if row.remedy else "")


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
