"""The chart and a real API server: decoding, admission, upgrades, refusals, two clusters, uninstallation."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.chart.charts import Manifest, objects, pod_templates
from tests.cluster.cluster_rig import Cluster, Failed, as_list
from tools.chart_goldens import EXAMPLES, RENDERED

SCALED = {"pods": {"router": {"autoscaling": {"enabled": True, "minReplicas": 2, "maxReplicas": 9}}}}
REFUSED = {
    "image": ({"image": {"tag": "9"}}, "image of its running pods .* would mix"),
    "memory": ({"pods": {"head": {"resources": {"limits": {"memory": "5Gi"}}}}}, "resources.limits.memory"),
    "Redis": ({"ray": {"gcsFaultTolerance": {"redisAddress": "r:1"}}}, "gcsFaultToleranceOptions"),
    "autoscaler": ({"ray": {"autoscaling": {"enabled": False}}, "rollout": {"surge": 0}}, "enableInTree"),
    "name": ({"fullnameOverride": "other"}, "set fullnameOverride to demo-flyserve"),
    "another cluster": ({"ray": {"active": "green"}}, "RayCluster demo-flyserve-green does not run"),
    "a smaller claim": ({"models": {"persistence": {"size": "1Gi"}}}, "models.persistence.size: is 1Gi"),
}
CLAIM = {"models": {"persistence": {"size": "2Gi"}}}

each_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)


def known(example: Path, cluster: Cluster) -> list[Manifest]:
    """The objects of an example whose kinds the cluster knows."""
    apis = cluster.apis()
    return [m for m in objects((RENDERED / example.name).read_text()) if m["apiVersion"] in apis]


@each_example
def test_every_object_of_an_example_passes_strict_decoding(example: Path, cluster: Cluster) -> None:
    # The pod of `helm test` needs the release's account; it is one of the pods below.
    made = [manifest for manifest in known(example, cluster) if manifest["kind"] != "Pod"]
    assert {"RayCluster", "Deployment", "Job", "NetworkPolicy"} <= {manifest["kind"] for manifest in made}
    done = cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", given=as_list(made))
    assert "Warning" not in done and done.count("(server dry run)") == len(made)


@each_example
def test_every_pod_of_an_example_is_admitted_under_the_restricted_standard(
    example: Path, cluster: Cluster
) -> None:
    def pod(number: int, template: Manifest) -> Manifest:
        metadata = {**template["metadata"], "name": f"pod-{number}"}
        # Accounts of the release are not there.
        spec = {**template["spec"], "serviceAccountName": "default"}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    made = [pod(*each) for each in enumerate(pod_templates(known(example, cluster)))]
    assert len(made) >= 6
    done = cluster.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", given=as_list(made))
    assert "Warning" not in done and done.count("(server dry run)") == len(made)


def number_of_routers(cluster: Cluster, release: str = "demo") -> int:
    return int(cluster.get("deployment", f"{release}-flyserve-router")["spec"]["replicas"])


def clusters(cluster: Cluster, release: str = "demo") -> set[str]:
    found = cluster.names("rayclusters", "--selector", f"app.kubernetes.io/instance={release}")
    return {name.rpartition("-")[2] for name in found}


@pytest.fixture(scope="module")
def demo(cluster: Cluster) -> str:
    """An installed release with a claim."""
    cluster.install("demo", CLAIM)
    return "demo"


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_take_effect_is_refused_before_anything_changes(
    case: str, demo: str, cluster: Cluster
) -> None:
    values, said = REFUSED[case]
    revision = cluster.helm("get", "metadata", demo)
    with pytest.raises(Failed, match=said):
        cluster.upgrade(demo, {**CLAIM, **values})
    assert cluster.helm("get", "metadata", demo) == revision


def test_values_that_stay_change_no_running_pod_and_others_are_named(demo: str, cluster: Cluster) -> None:
    """The API server adds defaults to what was installed: they are no change."""
    assert "Running pods of Ray" not in cluster.upgrade(demo, CLAIM)
    notes = cluster.upgrade(demo, CLAIM | {"pods": {"target": {"nodeSelector": {"pool": "a"}}}})
    assert re.search(r"demo-flyserve-blue \(target\): nodeSelector\n.*--replace", notes)
    assert "Running pods of Ray" in cluster.upgrade(demo, CLAIM), "the selector is gone from later pods"


def test_autoscaling_begins_with_the_routers_that_run(demo: str, cluster: Cluster) -> None:
    cluster.upgrade(demo, CLAIM)
    cluster.kubectl("scale", "deployment/demo-flyserve-router", "--replicas=5")
    cluster.upgrade(demo, CLAIM | SCALED)
    assert number_of_routers(cluster) == 5
    # An autoscaler writes another number, and the next upgrade keeps it.
    cluster.kubectl("scale", "deployment/demo-flyserve-router", "--replicas=7")
    cluster.upgrade(demo, CLAIM | SCALED | {"router": {"max_queued": 7}})
    assert number_of_routers(cluster) == 7
    assert "Routers go from 7 to 2" in cluster.upgrade(demo, CLAIM)
    assert number_of_routers(cluster) == 2


def test_a_release_moves_from_cluster_to_cluster_and_leaves_its_claim(demo: str, cluster: Cluster) -> None:
    def step(tag: str, active: str, standby: str = "", other: str = "") -> str:
        second: dict[str, Any] = {"name": standby, "image": {"tag": other}} if standby else {}
        ray = {"active": active, "standby": second}
        return cluster.upgrade(demo, CLAIM | {"image": {"tag": tag}, "ray": ray})

    step("0.1.0", "blue", "green", "2")
    assert clusters(cluster) == {"blue", "green"}
    step("2", "green", "blue", "0.1.0")
    assert clusters(cluster) == {"blue", "green"}
    assert "RayCluster demo-flyserve-blue is removed" in step("2", "green")
    assert clusters(cluster) == {"green"}
    cluster.helm("uninstall", demo)
    kinds = cluster.kubectl("api-resources", "--namespaced", "--verbs=list", "--output=name").split()
    left = cluster.names(",".join(kinds), "--selector", "app.kubernetes.io/instance=demo")
    # Endpoints and replica sets go a little later than their owners.
    assert [name for name in left if "claim" in name] == ["persistentvolumeclaim/demo-flyserve-models"]
    assert not [name for name in left if name.startswith(("raycluster", "deployment", "job", "service/"))]
    # The next installation takes the claim up again.
    cluster.install(demo, CLAIM, "--take-ownership")
    cluster.helm("uninstall", demo)


def test_a_quota_that_admits_no_pod_is_refused_and_leaves_nothing(cluster: Cluster) -> None:
    cluster.kubectl("create", "quota", "team", "--hard=limits.cpu=64")
    try:
        with pytest.raises(Failed, match=r"ResourceQuota team .*has limits\.cpu.*LimitRange"):
            cluster.install("quota")
    finally:
        cluster.kubectl("delete", "quota", "team")
    assert "quota" not in cluster.helm("list", "--all")
    assert not cluster.names("all", "--selector", "app.kubernetes.io/instance=quota")


def test_releases_with_long_names_live_side_by_side(cluster: Cluster) -> None:
    names = [f"production-serving-of-large-models-{region}" for region in ("eu", "us")]
    for name in names:
        cluster.install(name)
    assert (
        len(cluster.names("rayclusters", "--selector", f"app.kubernetes.io/instance in ({','.join(names)})"))
        == 2
    )
    for name in names:
        cluster.helm("uninstall", name)


def test_rocksdb_is_refused_exactly_where_kuberay_does_not_know_it(cluster: Cluster) -> None:
    values = {"ray": {"gcsFaultTolerance": {"rocksdb": {"enabled": True}}}}
    definition = cluster.kubectl("get", "crd", "rayclusters.ray.io", "--output", "json")
    if '"backend"' in definition:
        cluster.install("ft", values)
        cluster.helm("uninstall", "ft")
    else:
        with pytest.raises(Failed, match=r"gcsFaultToleranceOptions\.backend"):
            cluster.install("ft", values)
    assert "ft" not in cluster.helm("list", "--all", "--short").split()
