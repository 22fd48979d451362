"""Without a cluster to look into, as under Argo CD: the same objects, and no number of an autoscaler."""

from pathlib import Path

import yaml

from tests.chart.charts import objects, one, rendered
from tests.chart.test_examples import each_example
from tools.chart import CHART, template

APPLICATION = yaml.safe_load((CHART.parent / "argocd.yaml").read_text())


@each_example
def test_no_number_of_an_autoscaler_is_rendered(example: Path) -> None:
    manifests = objects(template(example))
    values = yaml.safe_load(example.read_text())
    for cluster in (m for m in manifests if m["kind"] == "RayCluster"):
        assert all("replicas" not in group for group in cluster["spec"]["workerGroupSpecs"])
    is_scaled = values.get("pods", {}).get("router", {}).get("autoscaling", {}).get("enabled", False)
    assert ("replicas" in one(manifests, "Deployment")["spec"]) is not is_scaled


def test_the_application_of_argo_cd_installs_the_chart(tmp_path: Path) -> None:
    spec = APPLICATION["spec"]
    helm = spec["source"]["helm"]
    assert CHART.parents[1] / spec["source"]["path"] == CHART
    manifests = rendered(
        tmp_path, helm["valuesObject"], api_versions=helm["apiVersions"], release=helm["releaseName"]
    )
    (ignored,) = spec["ignoreDifferences"]
    cluster = one(manifests, ignored["kind"])
    assert cluster["apiVersion"].partition("/")[0] == ignored["group"]
    # What is ignored is what Ray's autoscaler writes, and nothing that the chart renders.
    found = {key for group in cluster["spec"]["workerGroupSpecs"] for key in group}
    written = {path.removeprefix(".spec.workerGroupSpecs[].") for path in ignored["jqPathExpressions"]}
    assert written == {"replicas", "scaleStrategy"} and not written & found
    # NOTE: for a list of a custom resource, it would keep the whole list as it runs.
    assert not any("RespectIgnoreDifferences" in option for option in spec["syncPolicy"]["syncOptions"])


def test_keda_scales_the_routers_alone_on_requests_that_wait() -> None:
    manifests = objects(template(CHART / "examples" / "keda.yaml"))
    scaled = one(manifests, "ScaledObject")["spec"]
    deployment = one(manifests, "Deployment", "-router")
    assert scaled["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"]
    assert not [m for m in manifests if m["kind"] == "HorizontalPodAutoscaler"]
    (trigger,) = scaled["triggers"]
    assert trigger["metadata"]["query"] == 'sum(flyserve_requests_queued{namespace="serving"})'
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (2, 6)
    behavior = scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] >= 300, "streams are long"
    # Nodes can be drained, and one router of the fewest stays.
    budget = one(manifests, "PodDisruptionBudget", "-router")["spec"]
    assert budget["minAvailable"] < scaled["minReplicaCount"]
