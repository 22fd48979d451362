"""The fleet on Ray: each instance is a placement group with detached actors, named after the instance.

Ray restarts none of them: it would do so without back-off and on a node of its own choice, and a sharded
replica must be restarted as a whole. The controller restarts all of them in one way.
"""

import asyncio
import contextlib
import importlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayActorError
from ray.util import list_named_actors, placement_group, placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup, get_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from flyserve.core.errors import FlyServeError
from orchestration.control.fleet import InstanceHandle, InstanceLost, InstanceRejected, InstanceUnavailable
from orchestration.control.instances import Instance, InstanceKey, Node, Phase
from orchestration.control.placement import shortage
from orchestration.deployment.plan import ReplicaSpec
from orchestration.ray.api import constructor_error, nodes, reason, result
from orchestration.ray.names import CONTROLLER_ACTOR, NAMESPACE_PREFIX

_LEADER_CONCURRENCY = 8
"""A drain holds one of these for its whole grace period; calls of `address` must still get through."""
_FOLLOWER_CONCURRENCY = 4
"""One thread runs the follower; the others wait for its end, for this controller and an earlier one."""
_PLACEMENT_WAIT_S = 2.0
"""An instance that has no node after this time is reported as waiting; Ray itself reports nothing."""
_POLL_S = 0.1
_FOLLOWER_WAIT_S = 30.0
"""Longest wait of one call for a follower's end, so that no thread there is held for longer."""


class RayFleet:
    """Instances of one deployment in a namespace of their own."""

    def __init__(self, name: str) -> None:
        self._namespace = NAMESPACE_PREFIX + name

    async def nodes(self) -> tuple[Node, ...]:
        return await asyncio.to_thread(nodes)

    async def start(self, instance: Instance, registry: str) -> InstanceHandle:
        return await asyncio.to_thread(self._start, instance, registry)

    async def adopt(self, instance: Instance) -> InstanceHandle | None:
        return await asyncio.to_thread(self._adopt, instance)

    async def stop_orphans(self, known: Collection[InstanceKey]) -> None:
        await asyncio.to_thread(self._stop_orphans, {str(key) for key in known})

    def _start(self, instance: Instance, registry: str) -> InstanceHandle:
        try:
            return self._create(instance, registry)
        except Exception:
            self._remove(instance)
            raise

    def _create(self, instance: Instance, registry: str) -> InstanceHandle:
        spec, name = instance.spec, str(instance.key)
        module, _, class_name = spec.actor.partition(":")
        service = getattr(importlib.import_module(module), class_name)
        placement = placement_group(
            [dict(spec.resources)] * spec.shards,
            strategy="STRICT_PACK",
            name=self._placement_name(name),
            lifetime="detached",
            _soft_target_node_id=instance.node or None,
        )
        followers = [
            self._options(instance, placement, service.follower, rank).remote()
            for rank in range(1, spec.shards)
        ]
        leader = self._options(instance, placement, service, 0)
        handle = leader.remote({**spec.config, **spec.hints, "replica": spec.replica}, registry, followers)
        return RayInstance(spec, placement, handle, followers)

    def _adopt(self, instance: Instance) -> InstanceHandle | None:
        name = str(instance.key)
        try:
            placement = get_placement_group(self._placement_name(name))
            handles = [self._actor(_actor_name(name, rank)) for rank in range(instance.spec.shards)]
        except ValueError:
            self._remove(instance)
            return None
        leader, *followers = handles
        # NOTE: the node of one that has not served yet was only chosen for it: Ray may have no room there.
        node_id = "" if instance.phase is Phase.STARTING else instance.node
        return RayInstance(instance.spec, placement, leader, followers, node_id)

    def _remove(self, instance: Instance) -> None:
        """End the parts that an instance has left: each would block the next start under its name."""
        name = str(instance.key)
        for rank in range(instance.spec.shards):
            self._kill(_actor_name(name, rank))
        self._remove_placement(name)

    def _stop_orphans(self, known: Collection[str]) -> None:
        for found in list_named_actors(all_namespaces=True):
            name = found["name"]
            is_own = found["namespace"] == self._namespace and name != CONTROLLER_ACTOR
            if is_own and name.partition("/")[0] not in known:
                self._kill(name)
        # NOTE: groups outlive their actors: an earlier controller may have ended between the two.
        for group in placement_group_table().values():
            namespace, _, instance = group["name"].partition("/")
            if namespace == self._namespace and instance not in known and group["state"] != "REMOVED":
                self._remove_placement(instance)

    def _kill(self, name: str) -> None:
        with contextlib.suppress(ValueError):
            ray.kill(self._actor(name))

    def _remove_placement(self, name: str) -> None:
        with contextlib.suppress(ValueError):
            remove_placement_group(get_placement_group(self._placement_name(name)))

    def _placement_name(self, instance: str) -> str:
        """Return a name unique across deployments: placement groups are not in their namespaces."""
        return f"{self._namespace}/{instance}"

    def _actor(self, name: str) -> Any:
        return ray.get_actor(name, namespace=self._namespace)

    def _options(self, instance: Instance, placement: PlacementGroup, actor: type, rank: int) -> Any:
        marks = {name: n for name, n in instance.spec.resources.items() if name not in ("CPU", "GPU")}
        return ray.remote(actor).options(
            name=_actor_name(str(instance.key), rank),
            namespace=self._namespace,
            lifetime="detached",
            num_cpus=instance.spec.num_cpus,
            num_gpus=instance.spec.num_gpus,
            resources=marks,
            max_restarts=0,
            max_concurrency=_FOLLOWER_CONCURRENCY if rank else _LEADER_CONCURRENCY,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement, placement_group_bundle_index=rank
            ),
        )


def _actor_name(instance: str, rank: int) -> str:
    """Return an actor's name; the leader has the name of its instance."""
    return f"{instance}/{rank}" if rank else instance


@dataclass(slots=True)
class RayInstance:
    """A leader, which serves, and its followers in one placement group: one unit of failure.

    Attributes:
        node_id: Node that it was placed on; empty if unknown.
    """

    spec: ReplicaSpec
    placement: PlacementGroup
    leader: Any
    followers: Sequence[Any]
    node_id: str = ""

    async def node(self) -> str:
        for _ in range(int(_PLACEMENT_WAIT_S / _POLL_S)):
            if self.node_id:
                return self.node_id
            table = await asyncio.to_thread(placement_group_table, self.placement)
            if table["state"] == "CREATED":
                self.node_id = str(next(iter(table["bundles_to_node_id"].values())))
            elif table["state"] == "REMOVED":
                raise InstanceLost("its placement group was removed")
            else:
                await asyncio.sleep(_POLL_S)
        raise InstanceUnavailable(shortage(self.spec, await asyncio.to_thread(nodes)))

    async def address(self) -> str:
        address = asyncio.ensure_future(result(self.leader.address.remote()))
        ends = [asyncio.create_task(_end_of(follower)) for follower in self.followers]
        try:
            await asyncio.wait([address, *ends], return_when=asyncio.FIRST_COMPLETED)
            if not address.done():
                raise InstanceLost(next(end.result() for end in ends if end.done()))
            return str(address.result())
        except ActorDiedError as error:
            if isinstance(constructor_error(error), FlyServeError):
                raise InstanceRejected(reason(error)) from None
            raise InstanceLost(reason(error)) from None
        except RayActorError:
            raise InstanceUnavailable from None
        finally:
            for call in (address, *ends):
                call.cancel()

    async def drain(self, grace_s: float) -> None:
        # NOTE: errors are ignored: the processes are stopped next.
        await asyncio.gather(result(self.leader.drain.remote(grace_s)), return_exceptions=True)

    async def stop(self) -> None:
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        for actor in (self.leader, *self.followers):
            with contextlib.suppress(RayActorError, ValueError):
                ray.kill(actor)
        remove_placement_group(self.placement)


async def _end_of(follower: Any) -> str:
    """Wait for the end of a follower; return its reason."""
    while True:
        try:
            if (end := await result(follower.end.remote(_FOLLOWER_WAIT_S))) is not None:
                return str(end)
        except RayActorError as error:
            return reason(error)
