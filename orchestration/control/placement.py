"""Placement: choose the node of the next instance. Pure."""

from collections.abc import Iterable, Sequence

from orchestration.control.instances import Instance, Node
from orchestration.deployment.plan import ReplicaSpec


def choose_node(
    spec: ReplicaSpec, nodes: Sequence[Node], instances: Iterable[Instance], avoid: str = ""
) -> Node | None:
    """Return a node with room for all actors of a replica: the fewest of its tier, then the most free CPUs.

    Args:
        spec: Spec of the replica.
        nodes: Nodes that are up.
        instances: All instances that take room.
        avoid: Id of a node to choose only if there is no other.

    Returns:
        None if no node has room, judged by the instances of this deployment alone.
    """
    placed = [instance for instance in instances if instance.node]

    def free(node: Node, resource: str) -> float:
        taken = (i.spec.resources.get(resource, 0.0) * i.spec.shards for i in placed if i.node == node.id)
        return node.amount(resource) - sum(taken)

    def has_room(node: Node) -> bool:
        return all(free(node, name) >= asked * spec.shards for name, asked in spec.resources.items())

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
    marked = [node for node in nodes if spec.node_resource is None or node.amount(spec.node_resource)]
    if nodes and not marked:
        return f"no node is marked {spec.node_resource}"
    for resource, words in (("CPU", ""), ("GPU", " GPUs")):
        largest = max((node.amount(resource) for node in marked), default=0.0)
        if largest < spec.resources.get(resource, 0.0) * spec.shards:
            return f"no node is large enough for {asked}: the largest has {largest:g}{words}"
    return f"no node has room for {asked} at present"
