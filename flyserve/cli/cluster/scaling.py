"""`flyserve scale`, `flyserve drain`, `flyserve down`: fewer or more replicas, another one, none."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from fly.errors import ConfigError
from flyserve.cli.cluster.connecting import ANSWER_S, DEFAULT_NAME, Name, RayAddress, controller_of
from flyserve.cli.terminal import output, reported_errors

if TYPE_CHECKING:
    from fly.messages import Role

_END_S = 30.0

SCALE_EXAMPLES = """Examples:

flyserve scale target=4 drafter=2"""
DRAIN_EXAMPLES = """Examples:

flyserve drain target-0

flyserve drain target-0 --now"""
DOWN_EXAMPLES = """Examples:

flyserve down --grace-s 300"""


def scale(
    tiers: Annotated[list[str], typer.Argument(help="Such as target=4; may repeat.")],
    name: Name = DEFAULT_NAME,
    ray_address: RayAddress = None,
) -> None:
    """Change how many replicas of a tier run; what is let go finishes its streams first.

    Until the deployment's file is applied again, which says another number. A tier with autoscaling takes it
    within its limits, and goes on from there.
    """
    with reported_errors():
        replicas = parse_tiers(tiers)
        with controller_of(name, ray_address) as controller:
            from orchestration.ray.controller_client import get_result

            found = get_result(controller.scale.remote(replicas), ANSWER_S)
            for line in [str(change) for change in found] or ["unchanged"]:
                output().print(line, markup=False)


def drain(
    replica: Annotated[str, typer.Argument(help="Such as target-0.")],
    now: Annotated[bool, typer.Option("--now", help="Without waiting until its successor serves.")] = False,
    name: Name = DEFAULT_NAME,
    ray_address: RayAddress = None,
) -> None:
    """Replace a replica by another one, on another node where possible; its streams finish first."""
    with reported_errors(), controller_of(name, ray_address) as controller:
        from orchestration.ray.controller_client import get_result

        get_result(controller.drain.remote(replica, now), ANSWER_S)
        output().print(f"{replica} is being replaced", markup=False)


def down(
    name: Name = DEFAULT_NAME,
    grace_s: Annotated[float, typer.Option(min=0, help="Seconds that running streams may go on.")] = 30.0,
    ray_address: RayAddress = None,
) -> None:
    """Drain and end a deployment and its controller; Ray and routers go on."""
    with reported_errors(), controller_of(name, ray_address) as controller:
        from orchestration.ray.controller_client import stop_controller

        stop_controller(controller, grace_s, grace_s + _END_S)
        output().print(f"{name} has ended", markup=False)


def parse_tiers(tiers: Sequence[str]) -> "dict[Role, int]":
    """What `target=4 drafter=2` says.

    Raises:
        ConfigError: One of them does not say it so.
    """
    from fly.messages import Role

    replicas = {}
    for text in tiers:
        tier, _, number = text.partition("=")
        if tier not in set(Role) or not number.isdecimal():
            known = ", ".join(f"{role}=N" for role in Role)
            raise ConfigError(f"{text!r} is none of {known}")
        replicas[Role(tier)] = int(number)
    return replicas
