"""Helpers around Ray's API: results and errors of actor calls, nodes, and durable storage in the GCS."""

import asyncio
from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put

from orchestration.control.instances import Node


def constructor_error(error: BaseException) -> BaseException | None:
    """Return the exception of an actor's constructor if it ended the actor, else None."""
    task_error = next((arg for arg in error.args if isinstance(arg, RayTaskError)), None)
    return getattr(task_error, "cause", None)


def reason(error: BaseException) -> str:
    """Return in one line why an actor ended: its constructor's message if there is one, else Ray's."""
    message = str(constructor_error(error) or "").strip() or str(error).strip().rpartition("\n")[2]
    return " ".join(message.split())


async def result(reference: Any) -> Any:
    """Await a Ray reference in any event loop."""
    return await asyncio.wrap_future(reference.future())


def nodes() -> tuple[Node, ...]:
    """Return the nodes that are up."""

    def to_node(node: Any) -> Node:
        name = f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})"
        return Node(node["NodeID"], name, node["Resources"])

    list_nodes: Any = ray.nodes  # has no annotations
    return tuple(to_node(node) for node in list_nodes() if node["Alive"])


def node_address() -> str:
    """Return the address of this process's node, as other nodes reach it."""
    get_address: Any = ray.util.get_node_ip_address  # has no annotations
    return str(get_address())


class GcsStorage:
    """Stores the controller's document in the key-value store of Ray's GCS.

    The document lives exactly as long as the actors that it describes: longer than the controller, and with a
    fault-tolerant GCS longer than the head.

    NOTE: `_internal_kv` is private, but Ray 2.60 has no public alternative: a detached actor loses its memory
    when its process or node ends, and Ray restarts it with its first constructor arguments; the object store
    loses what has no owner. Ray's own libraries (Serve, Tune, Jobs) keep their state here as well.
    """

    _NAMESPACE = b"flyserve"

    def __init__(self, name: str) -> None:
        self._key = f"deployment/{name}".encode()

    def read(self) -> bytes | None:
        document: bytes | None = _internal_kv_get(self._key, namespace=self._NAMESPACE)
        return document

    def write(self, document: bytes) -> None:
        _internal_kv_put(self._key, document, overwrite=True, namespace=self._NAMESPACE)

    def delete(self) -> None:
        _internal_kv_del(self._key, namespace=self._NAMESPACE)
