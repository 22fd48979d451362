"""The objects that an upgrade changes, and those that it keeps."""

from pathlib import Path
from typing import Any

from tests.chart.charts import Manifest, one, rendered


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
