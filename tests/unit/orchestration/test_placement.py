from typing import Any

import pytest

from flyserve.core.errors import ConfigError
from flyserve.core.messages import Role
from orchestration.control.instances import Instance, Node
from orchestration.control.placement import choose_node, require_room, shortage
from orchestration.deployment.plan import ReplicaSpec, plan
from tests.unit.orchestration.manager_rig import deployment

A, B, C = (Node(id, f"node {id}", {"CPU": cpus}) for id, cpus in (("a", 4.0), ("b", 8.0), ("c", 2.0)))


def requiring(replica: str = "target-0", **fields: object) -> ReplicaSpec:
    fields_of = {
        "role": Role.TARGET,
        "replica": replica,
        "actor": "m:A",
        "num_cpus": 1.0,
        "config": {},
        **fields,
    }
    return ReplicaSpec(**fields_of)  # type: ignore[arg-type]


def on(node: Node, role: Role = Role.TARGET, num_cpus: float = 1.0) -> Instance:
    return Instance(requiring(f"{role}-0", role=role, num_cpus=num_cpus), 1, node=node.id)


@pytest.mark.parametrize(
    ("fields", "nodes", "placed", "node"),
    [
        # The replicas of a tier are spread; those of another one do not count.
        ({}, (A, B, C), [on(B)], A),
        ({}, (A, B, C), [on(A), on(B)], C),
        ({}, (A, B, C), [on(B, Role.DRAFTER)], B),
        # A node needs room for all shards.
        ({"num_cpus": 2.0, "shards": 3}, (A, B, C), [], B),
        ({"num_cpus": 2.0, "shards": 3}, (A, B, C), [on(B, num_cpus=3)], None),
        ({"num_cpus": 9.0}, (A, B, C), [], None),
        ({}, (), [], None),
    ],
)
def test_a_node_with_room_and_few_of_the_tier_is_chosen(
    fields: dict[str, Any], nodes: tuple[Node, ...], placed: list[Instance], node: Node | None
) -> None:
    assert choose_node(requiring(**fields), nodes, placed) == node


def test_a_node_to_avoid_is_chosen_only_if_no_other_has_room() -> None:
    assert choose_node(requiring(), (A, B), [on(A)], avoid="b") == A
    assert choose_node(requiring(), (B,), [], avoid="b") == B


PLAIN = Node("plain", "plain", {"CPU": 16.0})
MARKED = Node("marked", "marked", {"CPU": 4.0, "pool": 1000.0})
GPUS = Node("gpus", "gpus", {"CPU": 8.0, "pool": 1000.0, "GPU": 2.0})


def chosen(spec: ReplicaSpec, *placed: Instance) -> str | None:
    node = choose_node(spec, (PLAIN, MARKED, GPUS), placed)
    return None if node is None else node.id


def test_a_node_resource_restricts_the_choice_to_nodes_that_have_it() -> None:
    assert chosen(requiring()) == "plain"
    assert chosen(requiring(node_resource="pool")) == "gpus"
    assert chosen(requiring(node_resource="pool", num_cpus=9.0)) is None


def test_gpus_are_counted_for_every_shard_and_fractions_share_one() -> None:
    assert chosen(requiring(num_gpus=1.0, shards=2)) == "gpus"
    assert chosen(requiring(num_gpus=1.0, shards=3)) is None
    running = Instance(requiring("target-1", num_gpus=1.0), 1, node="gpus")
    assert chosen(requiring(num_gpus=0.5), running) == "gpus"
    assert chosen(requiring(num_gpus=0.5, shards=3), running) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"node_resource": "elsewhere"}, "no node is marked elsewhere"),
        (
            {"num_gpus": 1.0, "shards": 4},
            "no node is large enough for 4 shards of 1 CPUs and 1 GPUs: the largest has 2 GPUs",
        ),
        (
            {"node_resource": "pool", "num_cpus": 9.0},
            "no node is large enough for 9 CPUs: the largest has 8",
        ),
        (
            {"num_cpus": 4.0, "num_gpus": 4.0, "config": {"engine": "vllm", "shards": 4}},
            "no node is large enough for 4 CPUs and 4 GPUs: the largest has 2 GPUs",
        ),
        ({}, "no node has room for 1 CPUs at present"),
    ],
)
def test_the_missing_resource_is_reported(fields: dict[str, Any], message: str) -> None:
    assert shortage(requiring(**fields), (PLAIN, MARKED, GPUS)) == message


def test_what_does_not_fit_is_refused_with_the_arithmetic_of_every_resource() -> None:
    nodes = [Node(id, f"node {id}", {"CPU": 16.0, "GPU": 8.0}) for id in "ab"]
    before = deployment(target={"model": "/m", "shards": 3, "gpus": 1})
    after = before.model_copy(update={"target": before.target.model_copy(update={"replicas": 5})})
    running = [Instance(plan(before, "h:1")[0], 1, node="a")]
    message = (
        r"target=5: there is room for 4: 5 x 3 = 15 CPUs, and the nodes have 32, 0 of them for other tiers;"
        r" 5 x 3 = 15 GPUs, and the nodes have 16, 0 of them for other tiers; scale to less"
    )
    with pytest.raises(ConfigError, match=message):
        require_room(before, after, plan(after, "h:1"), nodes, running)
    require_room(after, before, plan(before, "h:1"), nodes, running)
    require_room(before, after, plan(after, "h:1"), (), running)


def test_a_thousand_replicas_are_checked_in_one_pass() -> None:
    nodes = [Node(str(index), f"node {index}", {"CPU": 8.0}) for index in range(128)]
    before = deployment(target={"model": "/m", "replicas": 1})
    after = before.model_copy(update={"target": before.target.model_copy(update={"replicas": 1024})})
    require_room(before, after, plan(after, "h:1"), nodes, [])
    with pytest.raises(ConfigError, match=r"there is room for 1016"):
        require_room(before, after, plan(after, "h:1"), nodes[1:], [])


@pytest.mark.parametrize(
    ("running", "asked", "node"),
    [
        ([0.6], 0.6, "gpus"),
        ([0.6, 0.6], 0.6, None),
        ([0.6, 0.6], 0.4, "gpus"),
        ([0.6, 0.3], 0.7, "gpus"),
        ([0.5, 0.5], 1.0, "gpus"),
        ([0.6, 0.6], 1.0, None),
        ([0.1] * 10, 1.0, "gpus"),
        ([2.0], 0.1, None),
    ],
)
def test_a_fraction_of_a_gpu_needs_a_gpu_with_room_for_it(
    running: list[float], asked: float, node: str | None
) -> None:
    placed = [
        Instance(requiring(f"target-{number}", num_gpus=gpus, num_cpus=0.1), 1, node="gpus")
        for number, gpus in enumerate(running)
    ]
    assert chosen(requiring("target-9", num_gpus=asked), *placed) == node


def test_a_target_finds_its_room_again_beside_drafters_that_went_on_running() -> None:
    node = Node("all", "all", {"CPU": 32.0, "GPU": 8.0})
    drafters = [Instance(requiring(f"drafter-{number}", num_gpus=0.2), 1, node="all") for number in range(4)]
    target = requiring(num_gpus=0.8, shards=8)
    assert choose_node(target, [node], drafters) is node
    ninth = requiring("drafter-9", num_gpus=0.9)
    assert choose_node(target, [node], [*drafters, Instance(ninth, 1, node="all")]) is None


def test_shards_of_one_replica_take_whole_gpus() -> None:
    half = Instance(requiring(num_gpus=0.5, num_cpus=0.1), 1, node="gpus")
    assert chosen(requiring("target-1", num_gpus=1.0, shards=2)) == "gpus"
    assert chosen(requiring("target-1", num_gpus=1.0, shards=2), half) is None
    assert chosen(requiring("target-1", num_gpus=2.0)) == "gpus"
    assert chosen(requiring("target-1", num_gpus=2.0), half) is None


@pytest.mark.parametrize(("gpus", "most"), [(0.2, 5), (0.1, 10), (0.3, 3)])
def test_a_tier_is_scaled_to_as_many_fractions_as_a_gpu_has(gpus: float, most: int) -> None:
    node = Node("one", "one", {"CPU": 32.0, "GPU": 1.0})
    before = deployment(target={"model": "/m", "gpus": gpus})
    running = [Instance(plan(before, "h:1")[0], 1, node="one")]

    def scale(number: int) -> None:
        after = deployment(target={"model": "/m", "gpus": gpus, "replicas": number})
        require_room(before, after, plan(after, "h:1"), [node], running)

    scale(most)
    with pytest.raises(ConfigError, match=f"target={most + 1}: there is room for {most}"):
        scale(most + 1)


@pytest.mark.parametrize(("first", "second"), [(0.9, 0.1), (0.1, 0.9), (0.7, 0.3), (0.3, 0.7)])
def test_fractions_that_are_a_whole_gpu_together_share_it(first: float, second: float) -> None:
    node = Node("one", "one", {"CPU": 32.0, "GPU": 1.0})
    running = Instance(requiring("target-0", num_gpus=first), 1, node="one")
    assert choose_node(requiring("target-1", num_gpus=second), [node], [running]) is node
    third = requiring("target-2", num_gpus=0.0001)
    full = [running, Instance(requiring("target-1", num_gpus=second), 1, node="one")]
    assert choose_node(third, [node], full) is None
