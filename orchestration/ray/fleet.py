"""The fleet on Ray: every instance a placement group with its actors, detached and named after it.

Ray restarts none of them: it would do so without back-off and where it likes, and a shared replica must be
restarted as a whole. The controller does, in one way for all.
"""

import asyncio
import contextlib
import importlib
from collections.abc import Collection
from typing import Any

import ray
from ray.util import list_named_actors, placement_group, remove_placement_group
from ray.util.placement_group import PlacementGroup, get_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestration.control.instances import Instance, Key, Node
from orchestration.control.supervision import Replica
from orchestration.ray.calls import NAMESPACE_PREFIX, nodes
from orchestration.ray.instance import RayReplica

CONTROLLER = "controller"
_LEADER_CONCURRENCY = 8
"""A drain occupies one of these for its whole grace period; address must get through beside it."""
_FOLLOWER_CONCURRENCY = 4
"""One thread follows; the others say why it ended, to this controller and to one before it."""


class RayFleet:
    """Instances of one deployment in a namespace of their own."""

    def __init__(self, name: str) -> None:
        self._namespace = NAMESPACE_PREFIX + name

    async def nodes(self) -> tuple[Node, ...]:
        return await asyncio.to_thread(nodes)

    async def start(self, instance: Instance, registry: str) -> Replica:
        return await asyncio.to_thread(self._start, instance, registry)

    async def adopt(self, instance: Instance) -> Replica | None:
        return await asyncio.to_thread(self._adopt, instance)

    async def end_strangers(self, known: Collection[Key]) -> None:
        await asyncio.to_thread(self._end_strangers, {str(key) for key in known})

    def _start(self, instance: Instance, registry: str) -> Replica:
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
        handle = leader.remote({**spec.config, **spec.hints}, registry, followers)
        return RayReplica(spec, placement, handle, followers)

    def _adopt(self, instance: Instance) -> Replica | None:
        name, shards = str(instance.key), instance.spec.shards
        try:
            placement = get_placement_group(self._placement_name(name))
            handles = [self._actor(_actor_name(name, rank)) for rank in range(shards)]
        except ValueError:
            # NOTE: what is left of it would be in the way of what is started under this name.
            self._clear(name, shards)
            return None
        return RayReplica(instance.spec, placement, handles[0], handles[1:], instance.node)

    def _end_strangers(self, known: Collection[str]) -> None:
        for found in list_named_actors(all_namespaces=True):
            name = found["name"]
            if found["namespace"] == self._namespace and name != CONTROLLER:
                instance = name.partition("/")[0]
                if instance not in known:
                    self._end(name)
                    self._remove_placement(instance)

    def _clear(self, name: str, shards: int) -> None:
        for rank in range(shards):
            self._end(_actor_name(name, rank))
        self._remove_placement(name)

    def _end(self, name: str) -> None:
        with contextlib.suppress(ValueError):
            ray.kill(self._actor(name))

    def _remove_placement(self, name: str) -> None:
        with contextlib.suppress(ValueError):
            remove_placement_group(get_placement_group(self._placement_name(name)))

    def _placement_name(self, instance: str) -> str:
        """Ray's names of placement groups go by the job that created the controller, not by a namespace."""
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
    """The leader is named as its instance."""
    return f"{instance}/{rank}" if rank else instance
