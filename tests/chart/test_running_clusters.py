"""Running Ray clusters are looked up: an upgrade cannot mix pods, nor lose the cluster of the routers."""

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.chart.charts import Manifest, rendered, upgraded
from tools.chart import ChartError

BOTH = {"limits": {"memory": "4Gi"}, "requests": {"memory": "4Gi"}}
MIXING: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "image": ({"image": {"tag": "9"}}, ("image", "flyserve:0.1.0", "flyserve:9")),
    "image of a role": ({"pods": {"drafter": {"image": {"tag": "9"}}}}, ("(drafter)", "flyserve:9")),
    "Ray": ({"ray": {"version": "2.61.0"}}, ("Ray's version", "2.60.0", "2.61.0")),
    "threads": ({"target": {"threads": 3}}, ("num-cpus", "(target)", "is 1", "have 3")),
    "shards": ({"target": {"shards": 2}}, ("num-cpus", "(target)", "is 1", "have 2")),
    "GPUs": ({"target": {"gpus": 1}, "pods": {"target": {"gpus": 1}}}, ("(target)", "num-gpus")),
    "memory": ({"pods": {"target": {"resources": BOTH}}}, ("resources.limits.memory", "3Gi", "4Gi")),
    "a limit less": (
        {"pods": {"target": {"resources": {"limits": None}}}},
        ("resources.limits.memory", "is 3Gi", "have none"),
    ),
    "CPUs of the head": ({"pods": {"head": {"resources": {"requests": {"cpu": "2"}}}}}, ("(head)",)),
    "fault tolerance": (
        {"ray": {"gcsFaultTolerance": {"redisAddress": "redis:6379"}}},
        ("gcsFaultToleranceOptions", "(head) is none", "redis:6379"),
    ),
    "Ray's token": ({"ray": {"authSecret": "mine"}}, ("authOptions", "mine")),
    "Ray's autoscaler": (
        {"ray": {"autoscaling": {"enabled": False}}, "rollout": {"surge": 0}},
        ("enableInTreeAutoscaling", "is true"),
    ),
    "a volume of models": (
        {"models": {"existingClaim": "weights"}, "target": {"model": "/models/a"}},
        ("mount of models", "(target)", "is none"),
    ),
    "a model of the hub": (
        {
            "models": {"hub": {"online": True, "ephemeralSize": "9Gi"}},
            "drafter": {"model": "org/name@main"},
        },
        ("env.HF_HOME", "(drafter)"),
    ),
    "replicas in a pod": ({"pods": {"target": {"replicasPerPod": 2}}}, ("num-cpus", "(target)")),
}
HARMLESS = {
    "nothing": {},
    "routers' image": {"pods": {"router": {"image": {"tag": "9"}, "resources": BOTH}}},
    "number of replicas": {"target": {"replicas": 5}},
    "rule": {"speculation": {"mode": "exact"}},
    "a tier less": {"sub_drafter": None},
    "node selector": {"pods": {"target": {"nodeSelector": {"pool": "a"}}}},
    "a variable": {"pods": {"target": {"env": [{"name": "A", "value": "b"}]}}},
    "time of idle pods": {"ray": {"autoscaling": {"idleTimeoutSeconds": 900}}},
    "second cluster": {
        "ray": {"standby": {"name": "green", "image": {"tag": "9"}, "values": {"target": {"threads": 3}}}}
    },
}


def clusters(manifests: list[Manifest]) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == "RayCluster"]


@pytest.fixture(scope="module")
def blue(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """The cluster of an installation without values."""
    (cluster,) = clusters(rendered(tmp_path_factory.mktemp("installed")))
    return cluster


@pytest.mark.parametrize("case", MIXING)
def test_a_change_that_only_later_pods_would_get_is_refused(
    case: str, blue: Manifest, tmp_path: Path
) -> None:
    values, parts = MIXING[case]
    with pytest.raises(ChartError, match="would mix") as refusal:
        upgraded(tmp_path, [blue], values)
    remedy = ("flyserve upgrade", "ray.standby", "kubectl -n serving delete raycluster demo-flyserve-blue")
    for part in (*parts, *remedy):
        assert part in str(refusal.value), refusal.value
    # Nothing runs: the same values install.
    assert rendered(tmp_path, values)


@pytest.mark.parametrize("case", HARMLESS)
def test_any_other_change_renders_as_without_a_cluster(case: str, blue: Manifest, tmp_path: Path) -> None:
    assert upgraded(tmp_path, [blue], HARMLESS[case]) == rendered(tmp_path, HARMLESS[case])


def test_the_running_cluster_stays_the_active_one_until_another_runs(blue: Manifest, tmp_path: Path) -> None:
    values = {"ray": {"active": "green"}}
    with pytest.raises(
        ChartError, match=r"ray\.active: is green, .*demo-flyserve-blue does: .* ray\.standby"
    ):
        upgraded(tmp_path, [blue], values)
    (green,) = clusters(rendered(tmp_path, values))
    assert upgraded(tmp_path, [blue, green], values) == rendered(tmp_path, values)


def test_a_second_cluster_keeps_its_pods_too(blue: Manifest, tmp_path: Path) -> None:
    values = {"ray": {"standby": {"name": "green", "image": {"tag": "9"}}}}
    both = clusters(rendered(tmp_path, values))
    assert upgraded(tmp_path, both, values)
    values["ray"]["standby"]["image"] = {"tag": "10"}
    with pytest.raises(ChartError, match=r"demo-flyserve-green: image .* is flyserve:9, .* flyserve:10"):
        upgraded(tmp_path, both, values)


def test_clusters_that_end_and_those_of_other_releases_do_not_count(blue: Manifest, tmp_path: Path) -> None:
    values = {"image": {"tag": "9"}}
    ending, other = copy.deepcopy(blue), copy.deepcopy(blue)
    ending["metadata"]["deletionTimestamp"] = "2026-11-23T08:00:00Z"
    other["metadata"] |= {"name": "other-blue"}
    other["metadata"]["labels"] |= {"flyserve.io/deployment": "other", "app.kubernetes.io/instance": "other"}
    assert upgraded(tmp_path, [ending, other], values) == rendered(tmp_path, values)
