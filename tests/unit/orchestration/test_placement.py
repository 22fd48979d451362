from fly.messages import Role
from orchestration.placement import choose_node, shortage
from orchestration.replicas import Instance, Node
from orchestration.topology import ReplicaSpec

A, B, C = Node("a", "node a", 4.0), Node("b", "node b", 8.0), Node("c", "node c", 2.0)


def spec(role: Role = Role.TARGET, num_cpus: float = 1.0, shards: int = 1) -> ReplicaSpec:
    return ReplicaSpec(role, f"{role}-0", "m:C", num_cpus, {}, shards)


def on(node: Node, role: Role = Role.TARGET, num_cpus: float = 1.0) -> Instance:
    return Instance(spec(role, num_cpus), 1, node=node.id)


def test_replicas_of_a_tier_are_spread_and_others_do_not_count() -> None:
    assert choose_node(spec(), (A, B, C), [on(B)]) == A
    assert choose_node(spec(), (A, B, C), [on(A), on(B)]) == C
    assert choose_node(spec(), (A, B, C), [on(B, Role.DRAFTER)]) == B


def test_a_node_needs_room_for_all_shards() -> None:
    assert choose_node(spec(num_cpus=2, shards=3), (A, B, C), []) == B
    assert choose_node(spec(num_cpus=2, shards=3), (A, B, C), [on(B, num_cpus=3)]) is None
    assert choose_node(spec(num_cpus=9), (A, B, C), []) is None


def test_a_node_to_avoid_is_the_last_choice_but_one() -> None:
    assert choose_node(spec(), (A, B), [on(A)], avoid="b") == A
    assert choose_node(spec(), (B,), [], avoid="b") == B
    assert choose_node(spec(), (), []) is None


def test_a_shortage_says_whether_waiting_may_help() -> None:
    assert shortage(spec(num_cpus=4, shards=3), (A, B)) == (
        "no node is large enough for 3 shards of 4 CPUs: the largest has 8"
    )
    assert shortage(spec(num_cpus=4), (A, B)) == "no node has room for 4 CPUs at present"
