"""Which node the next instance goes to. Pure."""

from collections.abc import Iterable, Sequence

from orchestration.replicas import Instance, Node
from orchestration.topology import ReplicaSpec


def choose_node(
    spec: ReplicaSpec, nodes: Sequence[Node], instances: Iterable[Instance], avoid: str = ""
) -> Node | None:
    """The node with room for all actors of a replica on which the fewest of its tier run, then the emptiest.

    Args:
        spec: Of the replica.
        nodes: Those that are up.
        instances: All that take room.
        avoid: Id of a node that is taken only where there is no other.

    Returns:
        None where no node has room, by what this deployment itself has placed there.
    """
    placed = [instance for instance in instances if instance.node]

    def free_cpus(node: Node) -> float:
        return node.num_cpus - sum(i.spec.total_cpus for i in placed if i.node == node.id)

    def rank(node: Node) -> tuple[bool, int, float, str]:
        of_tier = sum(i.node == node.id and i.role is spec.role for i in placed)
        return node.id == avoid, of_tier, -free_cpus(node), node.id

    return min((node for node in nodes if free_cpus(node) >= spec.total_cpus), key=rank, default=None)


def shortage(spec: ReplicaSpec, nodes: Sequence[Node]) -> str:
    """What a replica waits for that no node has room for, in one line."""
    asked = f"{spec.num_cpus:g} CPUs"
    if spec.shards > 1:
        asked = f"{spec.shards} shards of {asked}"
    largest = max((node.num_cpus for node in nodes), default=0.0)
    if largest < spec.total_cpus:
        return f"no node is large enough for {asked}: the largest has {largest:g}"
    return f"no node has room for {asked} at present"
