"""The objects that an upgrade changes, and those that it keeps."""

from pathlib import Path
from typing import Any

from tests.chart.charts import Manifest, one, rendered

STANDBY = {"ray": {"standby": {"name": "green", "image": {"tag": "0.2.0"}}}, "image": {"tag": "0.1.0"}}
SWAPPED = {
    "ray": {"active": "green", "standby": {"name": "blue", "image": {"tag": "0.1.0"}}},
    "image": {"tag": "0.2.0"},
}
DONE = {"ray": {"active": "green"}, "image": {"tag": "0.2.0"}}


def router_pod(manifests: list[Manifest]) -> Any:
    return one(manifests, "Deployment")["spec"]["template"]


def job(manifests: list[Manifest], cluster: str = "blue") -> Manifest:
    (found,) = (m for m in manifests if m["kind"] == "Job" and f"-{cluster}-apply" in m["metadata"]["name"])
    return found


def clusters(manifests: list[Manifest]) -> dict[str, Manifest]:
    return {m["metadata"]["name"]: m for m in manifests if m["kind"] == "RayCluster"}


def images(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["image"]} if isinstance(node.get("image"), str) else set()
        return own.union(*(images(value) for value in node.values()))
    return set().union(*(images(item) for item in node)) if isinstance(node, list) else set()


def test_the_same_values_change_nothing(tmp_path: Path) -> None:
    assert rendered(tmp_path) == rendered(tmp_path)


def test_routers_roll_without_a_gap(tmp_path: Path) -> None:
    spec = one(rendered(tmp_path), "Deployment")["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    # A pod has time to be forgotten by endpoints, and then to finish what it runs.
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "5"]
    assert pod["terminationGracePeriodSeconds"] > 300 + 5


def test_what_routers_read_rolls_them_and_what_they_do_not_read_does_not(tmp_path: Path) -> None:
    before = router_pod(rendered(tmp_path))
    assert router_pod(rendered(tmp_path, {"router": {"max_queued": 7}})) != before
    assert router_pod(rendered(tmp_path, {"speculation": {"mode": "exact"}})) != before
    keys = {"security": {"auth_tokens_file": "keys.yaml"}, "secrets": {"authTokens": "keys"}}
    assert router_pod(rendered(tmp_path, keys)) != before
    assert router_pod(rendered(tmp_path, {"target": {"replicas": 5}})) == before
    assert router_pod(rendered(tmp_path, {"drafter": {"threads": 2}})) == before


def test_a_change_of_the_deployment_is_applied_by_a_job_of_its_own(tmp_path: Path) -> None:
    before, after = (job(rendered(tmp_path, values)) for values in ({}, {"target": {"replicas": 3}}))
    assert before["metadata"]["name"] != after["metadata"]["name"]


def test_replicas_bring_their_pods(tmp_path: Path) -> None:
    values = {"target": {"replicas": 6}, "pods": {"target": {"replicasPerPod": 2}}, "rollout": {"surge": 2}}
    (cluster,) = clusters(rendered(tmp_path, values)).values()
    group = next(g for g in cluster["spec"]["workerGroupSpecs"] if g["groupName"] == "target")
    # Three pods of two, and two more while replicas are replaced.
    assert (group["minReplicas"], group["maxReplicas"]) == (3, 5)
    assert group["rayStartParams"]["num-cpus"] == "2"


def test_a_second_cluster_comes_beside_the_first_and_touches_neither_it_nor_routers(tmp_path: Path) -> None:
    alone = rendered(tmp_path, {"image": {"tag": "0.1.0"}})
    both = rendered(tmp_path, STANDBY)
    assert clusters(both)["demo-flyserve-blue"] == clusters(alone)["demo-flyserve-blue"]
    assert images(clusters(both)["demo-flyserve-green"]) == {"flyserve:0.2.0"}
    assert router_pod(both) == router_pod(alone)
    assert images(job(both, "green")) == {"flyserve:0.2.0"}
    assert one(both, "Service", "head-green")["spec"]["selector"]["flyserve.io/color"] == "green"


def test_swapping_moves_the_routers_and_leaves_both_clusters(tmp_path: Path) -> None:
    before, after = rendered(tmp_path, STANDBY), rendered(tmp_path, SWAPPED)
    assert clusters(after) == clusters(before)
    assert router_pod(after) != router_pod(before)
    assert images(router_pod(after)) == {"flyserve:0.2.0"}
    (container,) = router_pod(after)["spec"]["containers"]
    assert "demo-flyserve-head-green:50052" in container["command"]
    assert "/etc/flyserve/deployment-green.yaml" in container["command"]
    config = one(after, "ConfigMap", "-config")["data"]
    assert config.keys() == {"deployment-blue.yaml", "deployment-green.yaml"}


def test_the_old_cluster_goes_last(tmp_path: Path) -> None:
    before, after = rendered(tmp_path, SWAPPED), rendered(tmp_path, DONE)
    assert clusters(after) == {"demo-flyserve-green": clusters(before)["demo-flyserve-green"]}
    assert router_pod(after) == router_pod(before)
