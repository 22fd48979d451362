"""Placement: choose the replicas of each tier, list the nodes, and choose the node of the next instance."""

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from flyserve.core.clock import Clock
from flyserve.core.errors import ConfigError
from flyserve.core.messages import Role
from orchestration.control.gpus import fit_on_gpus, units
from orchestration.control.instances import Instance, Node, Phase
from orchestration.deployment.file import Deployment
from orchestration.deployment.plan import Members, ReplicaSpec, replica_names
from orchestration.deployment.scaling import autoscaled, replicas_of

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
        task = self._task = self._task or asyncio.ensure_future(self._list_nodes())
        await asyncio.wait({task}, timeout=_LIST_TIMEOUT_S)
        if task.done():
            # NOTE: two callers may wait for one list.
            self._task = None if self._task is task else self._task
            self.nodes = task.result()


def choose_node(
    spec: ReplicaSpec, nodes: Sequence[Node], instances: Iterable[Instance], avoid: str = ""
) -> Node | None:
    """Return a node with room for all actors of a replica: the fewest of its tier, then the most free CPUs.

    The node with the id `avoid` is chosen only if there is no other.

    Returns:
        None if no node has room, judged by the instances of this deployment alone.
    """
    return _Room(nodes, instances).choose(spec, avoid)


class _Room:
    """The nodes, with the resources that instances have taken there, in Ray's units."""

    def __init__(self, nodes: Sequence[Node], instances: Iterable[Instance]) -> None:
        self._nodes = nodes
        self._taken: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._of_tier: Counter[tuple[str, Role]] = Counter()
        self._on_gpus: defaultdict[str, list[float]] = defaultdict(list)
        for instance in instances:
            if instance.node:
                self.take(instance.spec, instance.node)

    def take(self, spec: ReplicaSpec, node: str) -> None:
        """Count a replica on a node."""
        for name, asked in spec.resources.items():
            self._taken[node, name] += units(asked) * spec.shards
        self._of_tier[node, spec.role] += 1
        self._on_gpus[node] += [spec.num_gpus] * spec.shards

    def choose(self, spec: ReplicaSpec, avoid: str = "") -> Node | None:
        needed = {name: units(asked) * spec.shards for name, asked in spec.resources.items()}

        def free(node: Node, name: str) -> int:
            return units(node.resources.get(name, 0.0)) - self._taken[node.id, name]

        def has_room(node: Node) -> bool:
            if not all(free(node, name) >= amount for name, amount in needed.items()):
                return False
            asked = [spec.num_gpus] * spec.shards
            return fit_on_gpus(node.resources.get("GPU", 0.0), [*self._on_gpus[node.id], *asked])

        def rank(node: Node) -> tuple[bool, int, int, str]:
            return node.id == avoid, self._of_tier[node.id, spec.role], -free(node, "CPU"), node.id

        return min(filter(has_room, self._nodes), key=rank, default=None)


def require_room(
    before: Deployment,
    after: Deployment,
    specs: Sequence[ReplicaSpec],
    nodes: Sequence[Node],
    instances: Iterable[Instance],
) -> None:
    """Check that the nodes have room for the tiers that grow; `specs` are all replicas of `after`. Pure.

    Tiers with autoscaling may wait for room: it has limits of its own, and Ray may add nodes. So may every
    tier as long as no node is known.

    Raises:
        ConfigError: There is too little room; the message says for how many, and what each requests.
    """
    limits, numbers = autoscaled(after), replicas_of(before)
    grown = {role for role, number in replicas_of(after).items() if number > numbers[role]} - limits.keys()
    if grown and nodes:
        _require_room(specs, grown, nodes, instances)


def _require_room(
    desired: Sequence[ReplicaSpec],
    grown: Collection[Role],
    nodes: Sequence[Node],
    instances: Iterable[Instance],
) -> None:
    running = {instance.key.replica: instance for instance in instances if instance.node}
    placed = [spec for spec in desired if spec.replica in running]
    room = _Room(nodes, [running[spec.replica] for spec in placed])
    for spec in desired:
        if spec.replica in running:
            continue
        if (node := room.choose(spec)) is not None:
            room.take(spec, node.id)
            placed.append(spec)
        elif spec.role in grown:
            raise ConfigError(_too_many(spec, desired, nodes, placed))


def _too_many(
    spec: ReplicaSpec, desired: Sequence[ReplicaSpec], nodes: Sequence[Node], placed: Sequence[ReplicaSpec]
) -> str:
    """Return the arithmetic of a tier that does not fit, in one line."""
    role = spec.role
    number, fits = (sum(other.role is role for other in specs) for specs in (desired, placed))
    others = [other for other in placed if other.role is not role]
    sums = []
    for resource in [name for name in ("CPU", "GPU") if name in spec.resources]:
        each = spec.resources[resource] * spec.shards
        has = sum(node.resources.get(resource, 0.0) for node in nodes)
        taken = sum(other.resources.get(resource, 0.0) * other.shards for other in others)
        sums.append(
            f"{number} x {each:g} = {number * each:g} {resource}s,"
            f" and the nodes have {has:g}, {taken:g} of them for other tiers"
        )
    return (
        f"{role}={number}: there is room for {fits}: {'; '.join(sums)};"
        " scale to less, add nodes, or pass --force: the others then wait for room"
    )


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
