"""Instances on a Ray of this machine: a start or an end that is interrupted, one that waits for room."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import ray
from ray.util import list_named_actors, placement_group_table

from flyserve.core.messages import Role
from orchestration.control.fleet import InstanceHandle, InstanceUnavailable
from orchestration.control.instances import Instance, Phase
from orchestration.deployment.plan import ACTORS, ReplicaSpec
from orchestration.local.folder import temporary_folder
from orchestration.local.local_ray import local_ray, prepare_environment
from orchestration.ray.fleet import RayFleet
from tests.support.local_ray import HANG_S, eventually

FLEET, NAMESPACE = RayFleet("probe"), "flyserve-probe"
INSTANCE = Instance(ReplicaSpec(Role.TARGET, "target-0", ACTORS[Role.TARGET], 1.0, {}), 1)


@pytest.fixture
def _local_ray() -> Iterator[None]:
    prepare_environment()
    with temporary_folder() as folder, local_ray(2, (), folder, False, HANG_S):
        yield


def start() -> InstanceHandle:
    return asyncio.run(FLEET.start(INSTANCE, "127.0.0.1:1"))


def groups() -> list[str]:
    """Return the names of the placement groups that exist."""
    return [each["name"] for each in placement_group_table().values() if each["state"] != "REMOVED"]


def named_actors() -> list[str]:
    found: list[dict[str, Any]] = list_named_actors(all_namespaces=True)
    return [each["name"] for each in found if each["namespace"] == NAMESPACE]


def test_what_an_interrupted_start_or_end_leaves_is_removed(_local_ray: None) -> None:
    class Holder:
        """Holds the name of the instance's actor, so that only its placement group can be created."""

    options = {"name": str(INSTANCE.key), "namespace": NAMESPACE, "lifetime": "detached", "num_cpus": 0}
    ray.remote(Holder).options(**options).remote()
    with pytest.raises(ValueError, match=str(INSTANCE.key)):
        start()
    eventually(lambda: not groups() and not named_actors())
    start()

    # Without a model the actor ends by itself; its group stays.
    eventually(lambda: not named_actors())
    asyncio.run(FLEET.stop_orphans([INSTANCE.key]))
    assert groups() == [f"{NAMESPACE}/{INSTANCE.key}"]
    asyncio.run(FLEET.stop_orphans([]))
    eventually(lambda: not groups())


def test_a_node_that_was_only_chosen_is_unknown_to_the_next_controller(_local_ray: None) -> None:
    waiting = replace(INSTANCE, spec=replace(INSTANCE.spec, num_cpus=9.0))
    asyncio.run(FLEET.start(waiting, "127.0.0.1:1"))
    adopted = asyncio.run(FLEET.adopt(replace(waiting, node="chosen")))
    assert adopted is not None
    with pytest.raises(InstanceUnavailable, match="no node is large enough for 9 CPUs: the largest has 2"):
        asyncio.run(adopted.node())
    served = asyncio.run(FLEET.adopt(replace(waiting, node="real", phase=Phase.READY)))
    assert served is not None and asyncio.run(served.node()) == "real"
    asyncio.run(adopted.stop())
    eventually(lambda: not groups() and not named_actors())
