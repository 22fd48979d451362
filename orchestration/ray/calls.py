"""Calls of Ray from an event loop, and why they fail."""

import asyncio
from typing import Any

import ray
from ray.exceptions import RayTaskError

from orchestration.control.instances import Node

NAMESPACE_PREFIX = "flyserve-"
"""Of the namespace of a deployment's named actors, before its name."""


def cause(error: BaseException) -> BaseException | None:
    """The exception that an actor's constructor raised, where that is why the actor died."""
    task_error = next((arg for arg in error.args if isinstance(arg, RayTaskError)), None)
    return getattr(task_error, "cause", None)


def reason(error: BaseException) -> str:
    """Why an actor died, in one line: the message of its constructor's exception where there is one."""
    message = str(cause(error) or "").strip() or str(error).strip().rpartition("\n")[2]
    return " ".join(message.split())


async def result(reference: Any) -> Any:
    """Awaits a Ray reference in any event loop."""
    return await asyncio.wrap_future(reference.future())


def nodes() -> tuple[Node, ...]:
    """The nodes that are up."""

    def made(node: Any) -> Node:
        name = f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})"
        return Node(node["NodeID"], name, node["Resources"].get("CPU", 0.0), dict(node["Resources"]))

    known: Any = ray.nodes  # without annotations of its own
    return tuple(made(node) for node in known() if node["Alive"])


def own_address() -> str:
    """Of the node that this process runs on, as the other nodes know it."""
    known: Any = ray.util.get_node_ip_address  # without annotations of its own
    return str(known())
