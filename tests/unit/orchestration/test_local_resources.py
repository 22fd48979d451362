"""The CPUs and the ports that a local run needs: found before a model is loaded."""

import socket
from typing import Any

import pytest

from flyserve.core.errors import ConfigError
from flyserve.core.messages import Role
from orchestration.control.instances import Instance, Node
from orchestration.control.placement import choose_node
from orchestration.deployment.file import Deployment
from orchestration.deployment.plan import plan, total_cpus
from orchestration.local.cpus import logical_cpus
from orchestration.local.ports import require_free_ports
from services.common.config import parse


def deployment(**sections: Any) -> Deployment:
    return parse(Deployment, {"target": {"model": "/m/big"}, **sections}, "test")


TARGET = {"model": "/m/big", "threads": "auto", "max_threads": 63}
DRAFTER = {"model": "/m/small", "threads": 40, "replicas": 2}


@pytest.mark.parametrize(
    ("sections", "surge", "least"),
    [
        ({"target": TARGET}, 1, 2 * 63),
        ({"target": TARGET}, 0, 63),
        ({"target": {**TARGET, "replicas": 2}, "drafter": DRAFTER}, 1, 3 * 63 + 3 * 40),
        ({"target": {**TARGET, "replicas": 2}, "drafter": DRAFTER}, 2, 4 * 63 + 4 * 40),
        ({"target": {**TARGET, "max_threads": 16, "shards": 4, "gpus": 1}}, 1, 2 * 64),
    ],
)
def test_ray_has_cpus_for_the_successors_of_the_largest_replicas(
    sections: dict[str, Any], surge: int, least: int
) -> None:
    specs = plan(deployment(**sections), "here:1")
    assert least <= logical_cpus(specs, surge) <= least + 32


@pytest.mark.parametrize("surge", [1, 2])
def test_a_successor_of_every_tier_finds_room_beside_all_replicas(surge: int) -> None:
    specs = plan(deployment(target=TARGET, drafter=DRAFTER, sub_drafter={}), "here:1")
    node = Node("here", "here", {"CPU": float(logical_cpus(specs, surge))})
    running = [Instance(spec, 1, node=node.id) for spec in specs]
    for spec in [each for each in specs if each.replica.endswith("-0")] * surge:
        assert choose_node(spec, [node], running) == node
        running.append(Instance(spec, 2, node=node.id))
    assert {instance.role for instance in running} == set(Role)
    assert total_cpus([instance.spec for instance in running]) > total_cpus(specs) + 32


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"telemetry": {"metrics_port": 49_951}},
            "telemetry.metrics_port of target-0: is 50051, as router.grpc_port is: give each its own",
        ),
        (
            {"router": {"http_port": 8001}, "target": {"model": "/m", "replicas": 2}},
            "telemetry.metrics_port of target-1: is 8001, as router.http_port is",
        ),
        ({"controller": {"port": 50_051}}, "controller.port: is 50051, as router.grpc_port is"),
    ],
)
def test_a_port_of_the_router_that_another_process_here_takes_first_is_rejected(
    sections: dict[str, Any], message: str
) -> None:
    made = deployment(**{"telemetry": {"metrics_port": 7900}, **sections})
    with pytest.raises(ConfigError, match=message):
        require_free_ports(made)


@pytest.mark.parametrize("key", ["router.grpc_port", "router.http_port", "telemetry.metrics_port"])
def test_a_port_that_is_in_use_is_named(key: str) -> None:
    section, name = key.split(".")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sections = {"router": {"grpc_port": 0}}
        sections.setdefault(section, {})[name] = port
        with pytest.raises(ConfigError, match=f"^{key}: 127.0.0.1:{port} cannot be bound: .*; stop the"):
            require_free_ports(deployment(**sections))


def test_free_ports_are_accepted() -> None:
    every = {"router": {"grpc_port": 0, "http_port": 0}, "telemetry": {"metrics_port": 0}}
    require_free_ports(deployment(**every, controller={"port": 0}))
    require_free_ports(deployment(router={"grpc_port": 0}))
