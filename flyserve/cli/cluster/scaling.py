"""`flyserve scale`, `flyserve drain`, `flyserve down`: change, replace or end replicas."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from flyserve.cli.cluster.connecting import Name, RayAddress, ask, controller_of, read_status
from flyserve.cli.options import LONGEST_GRACE_S, time_option
from flyserve.cli.terminal import output, reported_errors
from flyserve.core.errors import ConfigError, quoted

if TYPE_CHECKING:
    from flyserve.core.messages import Role

_END_S = 30.0
_MOST_DIGITS = 9
"""Digits of a number of replicas."""

SCALE_EXAMPLES = """Examples:

flyserve scale target=4 drafter=2"""
DRAIN_EXAMPLES = """Examples:

flyserve drain target-0

flyserve drain target-0 --now

flyserve drain --node this --timeout-s 300"""
DOWN_EXAMPLES = """Examples:

flyserve down --grace-s 300"""


def scale(
    tiers: Annotated[list[str], typer.Argument(help="Tier and number, such as target=4; may repeat.")],
    force: Annotated[
        bool, typer.Option("--force", help="Accept more than the nodes have room for: the rest waits.")
    ] = False,
    name: Name = None,
    ray_address: RayAddress = None,
) -> None:
    """Set the number of replicas of a tier; replicas that are removed finish their streams first.

    The number holds until the deployment's file gets another one. A number that the nodes have no room for is
    rejected, unless with --force. A tier with autoscaling accepts numbers within its limits and continues
    from there.
    """
    with reported_errors():
        replicas = parse_tiers(tiers)
        with controller_of(name, ray_address) as controller:
            found = ask(controller.scale, replicas, force)
            for line in [str(change) for change in found] or ["unchanged"]:
                output().print(line, markup=False)


def drain(
    replica: Annotated[
        str | None, typer.Argument(help="Name of the replica, such as target-0.", show_default=False)
    ] = None,
    now: Annotated[bool, typer.Option("--now", help="Do not wait until its successor serves.")] = False,
    node: Annotated[
        str | None,
        typer.Option(
            help="Id of a Ray node that is about to end, or this: drain all its replicas, wait for them,"
            " and place nothing there again."
        ),
    ] = None,
    timeout_s: Annotated[float, time_option(min=1, help="Time limit of --node, in seconds.")] = 300.0,
    name: Name = None,
    ray_address: RayAddress = None,
) -> None:
    """Replace a replica, on another node if possible, or all of a node; their streams finish first."""
    with reported_errors():
        if (replica is None) == (node is None):
            raise ConfigError("give the name of a replica, or --node: one of them")
        with controller_of(name, ray_address) as controller:
            if replica is not None:
                ask(controller.drain, replica, now)
                output().print(f"{replica} is being replaced", markup=False)
            if node is not None:
                from orchestration.ray.leaving import leave_node, this_node

                leave_node(controller, this_node() if node == "this" else node, timeout_s)
                output().print("no replica is left on the node", markup=False)


def down(
    name: Name = None,
    grace_s: Annotated[
        float,
        time_option(min=0, max=LONGEST_GRACE_S, help="Time that running streams have to finish, in seconds."),
    ] = 30.0,
    ray_address: RayAddress = None,
) -> None:
    """Drain and end a deployment and its controller.

    Ray and the routers continue to run, but those of flyserve up end as well.
    """
    with reported_errors(), controller_of(name, ray_address) as controller:
        from orchestration.ray.controller_client import stop_controller

        ended = name or read_status(controller).name
        stop_controller(controller, grace_s, grace_s + _END_S)
        output().print(f"{ended} has ended", markup=False)


def parse_tiers(tiers: Sequence[str]) -> "dict[Role, int]":
    """Return the numbers of `target=4 drafter=2`, by tier; raise ConfigError for another form."""
    from flyserve.core.messages import Role

    replicas = {}
    for text in tiers:
        tier, _, number = text.partition("=")
        if tier not in set(Role) or not number.isdecimal() or len(number) > _MOST_DIGITS:
            known = ", ".join(f"{role}=N" for role in Role)
            raise ConfigError(f"{quoted(text)} is none of {known}")
        replicas[Role(tier)] = int(number)
    return replicas
