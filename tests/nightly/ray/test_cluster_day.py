"""The recipes of docs/operate.md: real weights on three nodes, two routers, 16 exact streams all the time."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
import yaml

from demo.tasks import load_tasks
from demo.tokenizer import render
from flyserve.core.messages import Role
from flyserve.v1 import common_pb2
from flyserve.v1.target_pb2_grpc import TargetStub
from flyserve.wire.streams import info_from_wire
from orchestration.control.status import ReplicaStatus
from tests.nightly.ray.cluster_rig import NUM_STREAMS, Load, Nodes, Running, command
from tests.support.processes import DRAFTER_MODEL, TARGET_MODEL, ServiceProcess, service

NAME = ("--name", "day")
PROMPTS = [render(task.prompt) for task in load_tasks(NUM_STREAMS)]
SIZE = {"dtype": "float32", "max_sequences": 16, "kv_tokens": 16_384}
TIERS = {
    "target": {"model": str(TARGET_MODEL), **SIZE},
    "drafter": {"model": str(DRAFTER_MODEL), **SIZE},
    "sub_drafter": {"engine": "suffix"},
}


@pytest.fixture(autouse=True)
def _leaves_nothing() -> None:
    """Check nothing here: the cluster outlives each of these tests."""


class Day:
    """A deployment that its user's commands change, two routers, and the streams of one client.

    Attributes:
        expected: The undisturbed response to every prompt.
    """

    def __init__(self, nodes: Nodes, folder: Path, stack: ExitStack) -> None:
        self.nodes, self.running = nodes, Running("day", {})
        (folder / "deployment.yaml").write_text(yaml.safe_dump({"name": "day", **TIERS}))
        command(nodes, "apply", str(folder / "deployment.yaml"))
        stack.callback(self.running.down)
        self.running.until_complete()
        registry = ("--registry", self.running.registry)
        flags = ("--model", str(TARGET_MODEL), *registry, "--grpc-port", "0")
        self.routers: list[ServiceProcess] = [
            stack.enter_context(service("router", *flags)) for _ in range(2)
        ]
        self.load = Load(*(router.address for router in self.routers), prompts=PROMPTS)
        stack.callback(self.load.close)
        self.expected = self.load.answers()

    def scale(self, targets: int) -> None:
        """Change the number of targets by the command; return once it is reached."""
        command(self.nodes, "scale", f"target={targets}", *NAME)
        self.running.until(lambda rows: len(_targets(rows)) == targets)
        self.running.until_complete()

    def targets(self) -> list[ReplicaStatus]:
        return _targets(list(self.running.rows().values()))

    def until_all_serve(self) -> None:
        """Return once every target has computed prompts."""
        for target in self.targets():
            with grpc.insecure_channel(target.address) as channel:
                while not info_from_wire(TargetStub(channel).Info(common_pb2.InfoRequest()))[
                    1
                ].prefill_tokens:
                    pass


def _targets(rows: "list[ReplicaStatus] | tuple[ReplicaStatus, ...]") -> list[ReplicaStatus]:
    return [row for row in rows if row.role is Role.TARGET]


@pytest.fixture(scope="module")
def day(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    with ExitStack() as stack:
        yield Day(nodes, tmp_path_factory.mktemp("day"), stack)


def test_a_tier_is_scaled_from_one_to_four_and_back(day: Day) -> None:
    with day.load.undisturbed("scale target=4", day.expected):
        day.scale(4)
        assert len({target.node for target in day.targets()}) == 3, "each node has one"
        day.until_all_serve()
    with day.load.undisturbed("scale target=1", day.expected):
        day.scale(1)


def test_targets_spread_to_an_added_node(day: Day) -> None:
    day.scale(3)
    with day.load.undisturbed("a node is added, scale target=4", day.expected):
        added = day.nodes.add()[:8]
        day.scale(4)
        assert [added in target.node for target in day.targets()].count(True) == 1
        day.until_all_serve()


def test_a_node_is_lost(day: Day) -> None:
    import ray

    head = ray.get_runtime_context().get_node_id()
    ids = {node["NodeID"][:8]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
    lost = next(row for row in day.targets() if head[:8] not in row.node)
    with day.load.undisturbed("a node is killed", day.expected):
        day.nodes.kill(ids[lost.node.rpartition("(")[2][:8]])
        day.running.until(lambda rows: lost.node not in {row.node for row in rows if row.address})
        day.running.until_complete()
    assert lost.node not in {row.node for row in day.running.rows().values()}
    assert day.load.num_replays > 0


def test_a_router_is_lost(day: Day) -> None:
    with day.load.undisturbed("a router is killed", day.expected):
        day.routers[0].kill()
    assert day.load.num_resumed > 0
