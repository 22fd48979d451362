"""Pending replicas add pods: the controller's resource demands, seen by Ray's own autoscaler."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flyserve.core.messages import Role
from orchestration.control.status import ReplicaState
from tests.chart.charts import EXAMPLES, Manifest, one, rendered
from tests.nightly.ray.cluster_rig import SIMULATED, Running, model
from tests.support.ray_nodes import ray_nodes

BY_NAME = {example.stem: example for example in EXAMPLES}
SHARED = {Role.TARGET: "standins:SharedStandIn", Role.DRAFTER: "standins:StandInDrafter"}


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A Ray whose head has room for the controller only, like the chart's."""
    with ray_nodes(num_cpus=1) as (cluster, _):
        import ray

        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster


def deployment(manifests: list[Manifest], folder: Path) -> dict[str, Any]:
    """Return the tiers of the ConfigMap, with simulated models."""
    (text,) = one(manifests, "ConfigMap", "-config")["data"].values()
    config = yaml.safe_load(text)
    tiers = {name: config[name] for name in ("target", "drafter", "sub_drafter")}
    for name in ("target", "drafter"):
        tiers[name] |= {"model": model(folder, name)}
    return tiers


def pods_of(cluster: Manifest, gcs: str) -> dict[str, int]:
    """Return the pods that Ray's autoscaler requests from KubeRay, by group."""
    from ray._raylet import GcsClient
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
    from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
    from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
    from ray.autoscaler.v2.sdk import get_cluster_resource_state

    cluster["metadata"]["namespace"] = "serving"
    config = AutoscalingConfig(_derive_autoscaling_config_from_ray_cr(cluster), skip_content_hash=True)
    state = get_cluster_resource_state(GcsClient(gcs))
    request = SchedulingRequest(
        disable_launch_config_check=True,
        node_type_configs=config.get_node_type_configs(),
        max_num_nodes=config.get_max_num_nodes(),
        gang_resource_requests=list(state.pending_gang_resource_requests),
    )
    reply = ResourceDemandScheduler().schedule(request)
    assert not reply.infeasible_gang_resource_requests
    return {launch.instance_type: launch.count for launch in reply.to_launch}


def all_wait(running: Running, number: int) -> None:
    running.until(lambda rows: [row.state for row in rows] == [ReplicaState.PENDING] * number)


def add_pods(cluster: Any, manifest: Manifest, pods: dict[str, int]) -> None:
    """Add nodes for pods, as KubeRay does."""
    for group in manifest["spec"]["workerGroupSpecs"]:
        offered = group["rayStartParams"]
        marks = yaml.safe_load(yaml.safe_load(offered["resources"]))
        for _ in range(pods.get(group["groupName"], 0)):
            cluster.add_node(num_cpus=int(offered["num-cpus"]), resources=marks)


def test_pending_replicas_add_the_pods_that_they_need(tmp_path: Path, cluster: Any) -> None:
    manifests = rendered(tmp_path, {"target": {"replicas": 3}}, BY_NAME["autoscaled"])
    group = one(manifests, "RayCluster")
    running = Running("main", SIMULATED)
    running.apply(**deployment(manifests, tmp_path))
    all_wait(running, 5)
    # Each group has at least one pod; two more targets are added for the pending replicas.
    pods = pods_of(group, cluster.address)
    assert pods.pop("headgroup", 1) == 1
    assert pods == {"target": 3, "drafter": 1, "sub-drafter": 1}
    add_pods(cluster, group, pods)
    running.until_complete()
    running.down()


def test_a_pending_sharded_replica_adds_one_pod_for_all_its_shards(tmp_path: Path, cluster: Any) -> None:
    values = yaml.safe_load(BY_NAME["llama-70b-8b"].read_text())
    del values["target"]["engine_args"]
    builtin = {"engine": "builtin", "kv_tokens": 1024}
    values["target"] |= {"replicas": 2, "autoscaling": {"min": 1, "max": 2}, **builtin}
    values["drafter"]["replicas"] = 1
    manifests = rendered(tmp_path, values)
    running = Running("main", SHARED)
    running.apply(**deployment(manifests, tmp_path))
    all_wait(running, 4)
    assert pods_of(one(manifests, "RayCluster"), cluster.address)["target"] == 2
    running.down()
