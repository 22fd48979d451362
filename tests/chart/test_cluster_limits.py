"""Values that a cluster does not admit are refused before anything is installed."""

from pathlib import Path
from typing import Any

import pytest

from tests.chart.charts import CPU_DEMO, Manifest, one, rendered, upgraded
from tools.chart import KEDA_API, RAY_API, ChartError, template
from tools.chart_goldens import EXAMPLES

ROCKSDB = {"ray": {"gcsFaultTolerance": {"rocksdb": {"enabled": True}}}}
ROLES = ("router", "head", "target", "drafter", "sub_drafter", "apply")


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "team"},
        "spec": {"hard": hard, **spec},
        "status": {"hard": hard, "used": used or {}},
    }


def limit_range(**defaults: Any) -> Manifest:
    limits = [{"type": "Pod"}, {"type": "Container", **defaults}]
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "d"}, "spec": {"limits": limits}}


def limits(cpu: str) -> dict[str, Any]:
    """Values with a CPU limit for each container."""
    made = {"resources": {"limits": {"cpu": cpu}}}
    return {"pods": dict.fromkeys(ROLES, made), "ray": {"autoscaling": made}}


def test_a_quota_on_cpu_limits_is_met_by_each_container_or_refused_with_all_of_them(tmp_path: Path) -> None:
    team = quota({"limits.cpu": "64"})
    with pytest.raises(ChartError) as refusal:
        upgraded(tmp_path, [team])
    text = str(refusal.value)
    for part in ("ResourceQuota team of namespace serving", "limits.cpu", "ray.autoscaling", "LimitRange"):
        assert part in text, text
    assert all(f"pods.{role}" in text for role in ROLES), text
    assert upgraded(tmp_path, [team], limits("2")) == rendered(tmp_path, limits("2"))


@pytest.mark.parametrize(
    "around",
    [
        [quota({"limits.cpu": "64"}), limit_range(default={"cpu": "1"})],
        [quota({"limits.cpu": "1"}, scopes=["BestEffort"])],
        [quota({"limits.memory": "64Gi", "requests.cpu": "64", "memory": "64Gi", "pods": "3"})],
        [quota({"requests.nvidia.com/gpu": "0", "requests.storage": "1Gi"})],
        [limit_range(default={"cpu": "1"})],
    ],
)
def test_quotas_that_the_values_meet_change_nothing(around: list[Manifest], tmp_path: Path) -> None:
    assert upgraded(tmp_path, around) == rendered(tmp_path)


def test_what_a_quota_has_left_is_compared_with_what_starts(tmp_path: Path) -> None:
    team = quota({"requests.cpu": "8", "requests.memory": "16Gi"}, {"requests.cpu": "500m"})
    with pytest.raises(ChartError, match=r"pods: take 17 GiB, but ResourceQuota team .* has 16 GiB left"):
        upgraded(tmp_path, [team])
    assert upgraded(tmp_path, [team], None, CPU_DEMO)
    # The pods of a release that runs are in the quota already.
    assert upgraded(tmp_path, [team], more=("--is-upgrade",))


def schema_of(*nodes: Any) -> dict[str, Any]:
    """The smallest schema that knows what these objects have."""
    if all(isinstance(node, dict) for node in nodes):
        keys = dict.fromkeys(key for node in nodes for key in node)
        return {"properties": {key: schema_of(*(n[key] for n in nodes if key in n)) for key in keys}}
    if all(isinstance(node, list) for node in nodes):
        return {"items": schema_of(*(item for node in nodes for item in node))}
    return {}


def definition(folder: Path, values: Any) -> Manifest:
    """KubeRay's definition that knows the fields of a cluster with these values."""
    cluster = one(rendered(folder, values), "RayCluster")
    version = {"name": "v1", "schema": {"openAPIV3Schema": schema_of(cluster)}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "rayclusters.ray.io"},
        "spec": {"versions": [{"name": "v1alpha1"}, version]},
    }


def test_a_field_that_an_older_kuberay_lacks_is_refused_by_its_name(tmp_path: Path) -> None:
    older = definition(tmp_path, {"ray": {"gcsFaultTolerance": {"redisAddress": "redis:6379"}}})
    with pytest.raises(ChartError, match=r"RayCluster\.spec\.gcsFaultToleranceOptions\.backend: .*1\.7"):
        upgraded(tmp_path, [older], ROCKSDB)
    for around in ([], [definition(tmp_path, ROCKSDB)]):
        assert upgraded(tmp_path, around, ROCKSDB) == rendered(tmp_path, ROCKSDB)


@pytest.mark.parametrize(
    ("kind", "key", "values"),
    [("ResourceQuota", "quotas", {}), ("CustomResourceDefinition", "kuberay", ROCKSDB)],
)
def test_an_account_that_may_not_look_is_shown_the_value_that_skips_it(
    kind: str, key: str, values: Any, tmp_path: Path
) -> None:
    with pytest.raises(ChartError, match=rf"checks\.{key}: false skips this.*forbidden"):
        upgraded(tmp_path, [], values, forbidden=[kind])
    assert upgraded(tmp_path, [], {**values, "checks": {key: False}}, forbidden=[kind])


def test_only_what_a_value_needs_is_looked_up_beyond_the_namespace(tmp_path: Path) -> None:
    assert upgraded(tmp_path, [], forbidden=["CustomResourceDefinition"])


def test_kuberay_before_1_6_is_refused_where_the_cluster_names_its_kinds() -> None:
    known = (RAY_API, f"{RAY_API}/RayCluster")
    with pytest.raises(ChartError, match=r"older than 1\.6.*CustomResourceDefinitions"):
        template(api_versions=known)
    assert template(api_versions=(*known, f"{RAY_API}/RayCronJob")) == template(api_versions=(RAY_API,))


def test_keda_is_needed_where_it_scales() -> None:
    example = next(path for path in EXAMPLES if path.stem == "keda")
    with pytest.raises(ChartError, match=r"pods\.router\.keda\.prometheus: .*install KEDA"):
        template(example, api_versions=(RAY_API,))
    assert "ScaledObject" in template(example, api_versions=(RAY_API, KEDA_API))
