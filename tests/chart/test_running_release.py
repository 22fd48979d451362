"""State that a release has in its cluster besides Ray: numbers of routers, names, claims, encryption."""

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.chart.charts import SECURED, Manifest, one, rendered, upgraded
from tools.chart import ChartError

SCALED = {"pods": {"router": {"autoscaling": {"enabled": True, "minReplicas": 2, "maxReplicas": 9}}}}
KEDA = {"pods": {"router": {"autoscaling": {"enabled": True}, "keda": {"prometheus": "http://p:9090"}}}}
OWN = {
    "pods": {"router": {"autoscaling": {"enabled": True, "targetCPUUtilizationPercentage": None}}},
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    return rendered(tmp_path_factory.mktemp("installed"))


def routers(installed: list[Manifest], number: int) -> list[Manifest]:
    deployment = copy.deepcopy(one(installed, "Deployment"))
    deployment["spec"]["replicas"] = number
    return [deployment]


@pytest.mark.parametrize("values", [SCALED, KEDA, OWN], ids=["cpu", "keda", "own"])
@pytest.mark.parametrize(("running", "kept"), [(5, 5), (1, 2), (0, 2)])
def test_an_autoscaler_begins_with_the_routers_that_run(
    values: Any, running: int, kept: int, installed: list[Manifest], tmp_path: Path
) -> None:
    """Kubernetes takes a number that a release no longer has for 1."""
    made = one(upgraded(tmp_path, routers(installed, running), values), "Deployment")
    assert made["spec"]["replicas"] == kept


def test_an_autoscaler_s_number_is_rendered_only_where_it_runs(tmp_path: Path) -> None:
    for made in (upgraded(tmp_path, [], SCALED), rendered(tmp_path, SCALED)):
        assert "replicas" not in one(made, "Deployment")["spec"]


def test_keda_may_follow_the_autoscaler_in_one_upgrade(tmp_path: Path) -> None:
    """Helm creates KEDA's object before it removes the autoscaler, which KEDA refuses without this."""
    autoscaler = one(rendered(tmp_path, SCALED), "HorizontalPodAutoscaler")
    assert autoscaler["metadata"]["annotations"]["validations.keda.sh/hpa-ownership"] == "false"


def test_without_autoscaling_the_number_is_that_of_the_values(
    installed: list[Manifest], tmp_path: Path
) -> None:
    made = upgraded(tmp_path, routers(installed, 6))
    assert one(made, "Deployment")["spec"]["replicas"] == 2


@pytest.mark.parametrize("key", ["fullnameOverride", "nameOverride"])
def test_another_name_of_a_running_release_is_refused_with_the_present_one(
    key: str, installed: list[Manifest], tmp_path: Path
) -> None:
    with pytest.raises(ChartError, match=r"fullnameOverride: .*set fullnameOverride to demo-flyserve"):
        upgraded(tmp_path, installed, {key: "other"})
    assert upgraded(tmp_path, installed, {key: "other", "fullnameOverride": "demo-flyserve"})


def test_encryption_neither_begins_nor_ends_while_a_cluster_runs(
    installed: list[Manifest], tmp_path: Path
) -> None:
    with pytest.raises(ChartError, match=r"security\.tls: would begin .*second release.* delete raycluster"):
        upgraded(tmp_path, installed, None, SECURED)
    secured = rendered(tmp_path, None, SECURED)
    with pytest.raises(ChartError, match=r"security\.tls: would end "):
        upgraded(tmp_path, secured)
    assert upgraded(tmp_path, secured, None, SECURED)


def claim(**spec: Any) -> Manifest:
    """The claim of the models as it runs."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "demo-flyserve-models"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "shared",
            "resources": {"requests": {"storage": "500Gi"}},
            **spec,
        },
    }


@pytest.mark.parametrize(
    ("persistence", "said"),
    [
        ({"size": "400Gi"}, "models.persistence.size: is 400Gi, .*demo-flyserve-models has 500Gi"),
        ({"size": "500Gi", "accessMode": "ReadOnlyMany"}, "accessMode: is ReadOnlyMany, .*ReadWriteMany"),
        ({"size": "500Gi", "storageClass": "fast"}, "storageClass: is fast, .*has shared.*existingClaim"),
    ],
)
def test_what_kubernetes_does_not_change_of_a_claim_is_refused(
    persistence: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ChartError, match=said):
        upgraded(tmp_path, [claim()], {"models": {"persistence": persistence}})


@pytest.mark.parametrize("size", ["500Gi", "0.5Ti", "600Gi", "1T"])
def test_a_claim_may_grow(size: str, tmp_path: Path) -> None:
    made = upgraded(tmp_path, [claim()], {"models": {"persistence": {"size": size}}})
    assert one(made, "PersistentVolumeClaim")["spec"]["resources"]["requests"]["storage"] == size
