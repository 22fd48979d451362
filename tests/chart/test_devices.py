"""Accelerators of any vendor, claimed devices, and models in an OCI image, by the values that there are."""

from pathlib import Path

import kubernetes_validate

from tests.chart.charts import Manifest, one, rendered
from tests.chart.test_extension_points import DIGEST, pods


def valid_pods(manifests: list[Manifest], version: str = "1.36") -> dict[str, Manifest]:
    """Return one pod of each role, all of which this version of Kubernetes takes."""
    found = pods(manifests)
    for pod in found.values():
        whole = {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {**pod["metadata"], "name": "pod"}}
        kubernetes_validate.validate(whole, version, strict=True)
    return found


def test_models_in_an_oci_image_are_mounted_where_they_are_read(tmp_path: Path) -> None:
    values = {"models": {"ociImage": f"registry/models@{DIGEST}"}, "target": {"model": "/models/a"}}
    found = valid_pods(rendered(tmp_path, values, more=("--kube-version", "1.36.0")))
    image = {"reference": f"registry/models@{DIGEST}", "pullPolicy": "IfNotPresent"}
    for role, pod in found.items():
        volumes = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "models"]
        assert volumes == ([{"name": "models", "image": image}] if role in ("router", "target") else [])
        mounts = {mount["name"]: mount for mount in pod["spec"]["containers"][0]["volumeMounts"]}
        assert "models" not in mounts or (mounts["models"]["mountPath"], mounts["models"]["readOnly"]) == (
            "/models",
            True,
        )


def test_devices_are_claimed_instead_of_counted(tmp_path: Path) -> None:
    """Dynamic resource allocation: Ray counts the GPUs that the claim brings."""
    claim = {"name": "gpus", "resourceClaimTemplateName": "two-gpus"}
    container = {"name": "ray-worker", "resources": {"claims": [{"name": "gpus"}]}}
    extra = {"resourceClaims": [claim], "containers": [container]}
    values = {
        "target": {"gpus": 1, "shards": 2},
        "pods": {"target": {"gpus": 2, "gpuResource": "", "extra": extra}},
    }
    manifests = rendered(tmp_path, values)
    resources = valid_pods(manifests)["target"]["spec"]["containers"][0]["resources"]
    assert resources["claims"] == [{"name": "gpus"}] and "nvidia.com/gpu" not in str(resources)
    (target, *_) = one(manifests, "RayCluster")["spec"]["workerGroupSpecs"]
    assert target["rayStartParams"]["num-gpus"] == "2"


def test_gpus_of_any_vendor_are_requested_by_their_name(tmp_path: Path) -> None:
    values = {"target": {"gpus": 1}, "pods": {"target": {"gpus": 1, "gpuResource": "amd.com/gpu"}}}
    resources = pods(rendered(tmp_path, values))["target"]["spec"]["containers"][0]["resources"]
    assert resources["limits"]["amd.com/gpu"] == resources["requests"]["amd.com/gpu"] == "1"
