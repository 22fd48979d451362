"""Interface between the controller's logic and the machines that its instances run on."""

from collections.abc import Collection
from typing import Protocol

from orchestration.control.instances import Instance, InstanceKey, Node


class InstanceUnavailable(Exception):
    """The instance does not answer yet; the message may say in one line what it waits for."""


class InstanceLost(Exception):
    """The instance will not serve again; the message says why in one line."""


class InstanceRejected(InstanceLost):
    """The configuration or the model of the instance was rejected; the message says why in one line."""


class InstanceHandle(Protocol):
    """The processes of one instance."""

    async def node(self) -> str:
        """Return the id of the node that it was placed on.

        Raises:
            InstanceUnavailable: No node has room for it yet.
        """

    async def address(self) -> str:
        """Return host:port of its server, as soon as it serves.

        Raises:
            InstanceUnavailable: It does not answer at present.
            InstanceLost: It has ended.
            InstanceRejected: It cannot be started.
        """

    async def drain(self, grace_s: float) -> None:
        """Let running streams finish within `grace_s`; never raises."""

    async def stop(self) -> None:
        """Stop its processes; a second call does nothing. After an error it is called again."""


class Fleet(Protocol):
    """The nodes and the instances that run on them."""

    async def nodes(self) -> tuple[Node, ...]:
        """Return the nodes that are up."""

    async def start(self, instance: Instance, registry: str) -> InstanceHandle:
        """Start an instance on its node if that has room, else on any node, now or as soon as one has room.

        `registry` is host:port of the registry, reachable from every node.
        """

    async def adopt(self, instance: Instance) -> InstanceHandle | None:
        """Return the handle of an instance that was started before; None if it has ended."""

    async def stop_orphans(self, known: Collection[InstanceKey]) -> None:
        """Stop every instance of this deployment that is not in `known`."""
