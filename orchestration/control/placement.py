"""Placement: choose the replicas of each tier, list the nodes, and choose the node of the next instance."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from fly.clock import Clock
from fly.messages import Role
from orchestration.control.gpus import fit_on_gpus
from orchestration.control.instances import Instance, Node, Phase
from orchestration.deployment.file import Deployment
from orchestration.deployment.plan import Members, ReplicaSpec, replica_names

_LIST_INTERVAL_S = 2.0
_LIST_TIMEOUT_S = 2.0


class NodeList:
    """The nodes that are up, as listed last; for one event loop."""

    def __init__(self, list_nodes: Callable[[], Awaitable[tuple[Node, ...]]], clock: Clock) -> None:
        self.nodes: tuple[Node, ...] = ()
        self._list_nodes, self._clock = list_nodes, clock
        self._listed_at = -_LIST_INTERVAL_S
        self._task: asyncio.Future[tuple[Node, ...]] | None = None

    async def refresh(self, at_once: bool) -> None:
        """List the nodes, `at_once` or every 2 s; keep the latest list if there is no answer within 2 s."""
        if not at_once and self._clock.now() - self._listed_at < _LIST_INTERVAL_S:
            return
        self._listed_at = self._clock.now()
        if self._task is None:
            self._task = asyncio.ensure_future(self._list_nodes())
        await asyncio.wait({self._task}, timeout=_LIST_TIMEOUT_S)
        if self._task.done():
            task, self._task = self._task, None
            self.nodes = task.result()


def choose_node(
    spec: ReplicaSpec, nodes: Sequence[Node], instances: Iterable[Instance], avoid: str = ""
) -> Node | None:
    """Return a node with room for all actors of a replica: the fewest of its tier, then the most free CPUs.

    The node with the id `avoid` is chosen only if there is no other.

    Returns:
        None if no node has room, judged by the instances of this deployment alone.
    """
    placed = [instance for instance in instances if instance.node]

    def free(node: Node, resource: str) -> float:
        taken = (i.spec.resources.get(resource, 0.0) * i.spec.shards for i in placed if i.node == node.id)
        return node.resources.get(resource, 0.0) - sum(taken)

    def has_room(node: Node) -> bool:
        held = [[i.spec.num_gpus] * i.spec.shards for i in placed if i.node == node.id]
        return all(
            free(node, name) >= asked * spec.shards for name, asked in spec.resources.items()
        ) and fit_on_gpus(
            node.resources.get("GPU", 0.0), itertools.chain(*held, [spec.num_gpus] * spec.shards)
        )

    def rank(node: Node) -> tuple[bool, int, float, str]:
        of_tier = sum(i.node == node.id and i.role is spec.role for i in placed)
        return node.id == avoid, of_tier, -free(node, "CPU"), node.id

    return min(filter(has_room, nodes), key=rank, default=None)


def shortage(spec: ReplicaSpec, nodes: Sequence[Node]) -> str:
    """Return the resource that a replica without a node waits for, in one line."""
    asked = f"{spec.num_cpus:g} CPUs"
    if spec.num_gpus:
        asked += f" and {spec.num_gpus:g} GPUs"
    if spec.shards > 1:
        asked = f"{spec.shards} shards of {asked}"
    marked = [node for node in nodes if spec.node_resource is None or spec.node_resource in node.resources]
    if nodes and not marked:
        return f"no node is marked {spec.node_resource}"
    for resource, words in (("CPU", ""), ("GPU", " GPUs")):
        largest = max((node.resources.get(resource, 0.0) for node in marked), default=0.0)
        if largest < spec.resources.get(resource, 0.0) * spec.shards:
            return f"no node is large enough for {asked}: the largest has {largest:g}{words}"
    return f"no node has room for {asked} at present"


def choose_members(deployment: Deployment, before: Members, instances: Collection[Instance]) -> Members:
    """Return the replicas of each tier: the present ones, plus new ones or minus some.

    Replicas that do not serve are removed first, then those with the least load, the last ones first. A new
    replica gets a name under which nothing runs.
    """
    return {
        role: _resized(role, before.get(role, ()), tier.replicas, [i for i in instances if i.role is role])
        for role, tier in deployment.tiers.items()
    }


def _resized(
    role: Role, before: tuple[str, ...], number: int, instances: Collection[Instance]
) -> tuple[str, ...]:
    if number <= len(before):
        kept = sorted(before, key=lambda name: _keep_priority(name, instances), reverse=True)[:number]
        return tuple(name for name in before if name in kept)
    taken = {*before, *(instance.key.replica for instance in instances)}
    free = (name for name in replica_names(role) if name not in taken)
    return (*before, *itertools.islice(free, number - len(before)))


def _keep_priority(replica: str, instances: Collection[Instance]) -> tuple[bool, int, int]:
    """Return the priority of keeping a replica: whether it serves and stays, then its load."""
    own = [i for i in instances if i.key.replica == replica and i.phase is Phase.READY]
    is_lasting = any(not i.is_marked_for_replacement for i in own)
    return is_lasting, sum(i.load.sequences + i.load.queued for i in own), sum(i.load.kv_used for i in own)
