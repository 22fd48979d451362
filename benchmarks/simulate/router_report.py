"""What a router costs, as tables and text."""

import math
import statistics
from collections.abc import Iterator, Sequence

from benchmarks.bars import Bar
from benchmarks.prose import wrapped
from benchmarks.simulate.figures import Figures
from benchmarks.simulate.plan import FLY, Deployment
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.router_cost import ROUTER_SETTINGS, Block
from benchmarks.simulate.runner import Found
from benchmarks.summary import bootstrap
from benchmarks.text_table import TextTable
from fly.messages import Endpoint, Role, Snapshot
from protos.wire.streams import snapshot_to_wire

LIMIT_MS = 0.1
"""CPU time of a router per emitted token, at a tau of 10."""
_PACKAGES, _FUNCTIONS = 12, 25
"""Rows of a profile's tables."""
_USE = 0.6
"""Of a core, that a router is to need on the average."""
_NEEDED_HEADS = ("setting", "targets", "tokens/s", "routers", "connections of all", "snapshot, bytes")
_HEADS = (
    "setting",
    "tau",
    "CPU ms per token",
    "95% interval",
    "least to most",
    "CPU ms per round",
    "tokens/s",
)


def router_bar(blocks: Sequence[Block]) -> Bar:
    """What was promised of FLy's tokens."""
    ratios = [block.cpu_ms / LIMIT_MS for block in blocks if block.setting == FLY]
    name = f"a router's CPU time per token at tau {_tau(blocks, FLY):.1f}, by {LIMIT_MS:g} ms"
    return Bar(name, 1.0, bootstrap(ratios, statistics.median), is_least=False)


def router_table(blocks: Sequence[Block]) -> TextTable:
    """A row per setting; the last column is what one core would carry."""
    return TextTable("A router's CPU time", _HEADS, tuple(_row(blocks, each) for each in ROUTER_SETTINGS))


def router_lines(found: Found, sizes: Sequence[Figures]) -> Iterator[str]:
    """The section of the report; `sizes` are the deployments of which it says how many routers they need."""
    plan = found.router_plan
    yield wrapped(f"""
## A router's CPU time, undilated

CPU time of the router's process, with metrics, by the kernel's clock; the same requests before a target
and a drafter whose forwards take no time, {plan.at_once} at once. {plan.launches} launches of all
processes, {plan.blocks} blocks of {plan.requests} requests in each; the median over blocks, and its 95%
interval over resamples of them.
""")
    yield from router_table(found.blocks).markdown()
    yield wrapped(f"""
Routers that the simulated deployments would need, each to be busy for {_USE:.0%} of a core; the
connections that they have to replicas, all together; and what the registry tells each of them at every
change:
""")
    yield from _needed(found.blocks, sizes).markdown()
    for setting, profile in found.profiles.items():
        yield from _profile_lines(setting, profile)


def _row(blocks: Sequence[Block], setting: str) -> tuple[str, ...]:
    own = [block for block in blocks if block.setting == setting]
    costs, tau = [block.cpu_ms for block in own], _tau(blocks, setting)
    cost = bootstrap(costs, statistics.median)
    per_round = statistics.median(block.cpu_ms * block.tokens / block.rounds for block in own)
    return (
        setting,
        f"{tau:.1f}" if tau else "-",
        f"{cost.value:.4f}",
        f"{cost.low:.4f} to {cost.high:.4f}",
        f"{min(costs):.4f} to {max(costs):.4f}",
        f"{per_round:.3f}",
        f"{1e3 / cost.value:,.0f}",
    )


def _tau(blocks: Sequence[Block], setting: str) -> float:
    return statistics.median(block.tau for block in blocks if block.setting == setting)


def _needed(blocks: Sequence[Block], sizes: Sequence[Figures]) -> TextTable:
    rows = []
    for each in sizes:
        costs = [block.cpu_ms for block in blocks if block.setting == each.setting]
        if costs:
            cores = each.tokens_per_s * statistics.median(costs) / 1e3
            routers, shape = max(1, math.ceil(cores / _USE)), each.deployment
            connections = routers * (shape.targets + shape.drafters)
            numbers = (each.tokens_per_s, routers, connections, _snapshot_bytes(shape))
            rows.append((each.setting, str(shape.targets), *(f"{number:,.0f}" for number in numbers)))
    return TextTable("", _NEEDED_HEADS, tuple(rows))


def _snapshot_bytes(shape: Deployment) -> int:
    """Of what the registry tells every router of this deployment at every change."""
    numbers = {Role.TARGET: shape.targets, Role.DRAFTER: shape.drafters}
    endpoints = (
        Endpoint(role, f"10.0.{number // 256}.{number % 256}:50100", f"{role.value}-{number}", 1)
        for role, count in numbers.items()
        for number in range(count)
    )
    return snapshot_to_wire(Snapshot(1, tuple(endpoints))).ByteSize()


def _profile_lines(setting: str, profile: Profile) -> Iterator[str]:
    yield wrapped(f"""
### Where it goes: {setting}

{profile.samples} samples by CPU time of the whole process, at a router of its own ({profile.cpu_ms:.4f}
ms per token while it was watched). A sample counts for the Python function that runs when C code returns
to the interpreter, so some of what gRPC and the event loop take is found at functions that they call
(`deserialize`, `read`).
""")
    for head, shares in (
        ("part of a request", profile.parts),
        ("package", profile.packages[:_PACKAGES]),
        ("function", profile.functions[:_FUNCTIONS]),
    ):
        rows = tuple((_code(name), f"{part:.1%}") for name, part in shares)
        yield from TextTable("", (head, "share"), rows).markdown()
        yield ""


def _code(name: str) -> str:
    return name if " " in name else f"`{name}`"
