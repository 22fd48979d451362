"""What a cluster needs and the chart does not foresee can be added, and nothing else changes by it."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.chart.charts import CPU_DEMO, Manifest, one, pod_templates, rendered
from tools.chart import ChartError

ROLES = ("router", "head", "target", "drafter", "sub_drafter", "apply", "test")
DIGEST = "sha256:" + "0123456789abcdef" * 4
each_role = pytest.mark.parametrize("role", ROLES)


def pods(manifests: list[Manifest]) -> dict[str, Manifest]:
    """Return one pod of each role."""
    return {pod["metadata"]["labels"]["flyserve.io/role"]: pod for pod in pod_templates(manifests)}


def images(folder: Path, values: Any) -> dict[str, str]:
    return {
        role: pod["spec"]["containers"][0]["image"] for role, pod in pods(rendered(folder, values)).items()
    }


@each_role
def test_every_pod_can_be_labelled_and_scheduled(role: str, tmp_path: Path) -> None:
    scheduling = {
        "nodeSelector": {"kubernetes.io/arch": "arm64"},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "runtimeClassName": "nvidia",
    }
    metadata = {"labels": {"team": "search"}, "annotations": {"sidecar.istio.io/inject": "false"}}
    more = {**scheduling, **metadata, "env": [{"name": "HTTPS_PROXY", "value": "proxy:3128"}]}
    before, after = rendered(tmp_path), rendered(tmp_path, {"pods": {role: more}})
    pod = pods(after)[role]
    assert scheduling.items() <= pod["spec"].items()
    assert metadata["labels"].items() <= pod["metadata"]["labels"].items()
    assert metadata["annotations"].items() <= pod["metadata"]["annotations"].items()
    assert {"name": "HTTPS_PROXY", "value": "proxy:3128"} in pod["spec"]["containers"][0]["env"]
    others = {name: pod for name, pod in pods(after).items() if name != role}
    assert others == {name: pod for name, pod in pods(before).items() if name != role}


@each_role
def test_a_fragment_of_a_pod_is_merged_last(role: str, tmp_path: Path) -> None:
    before = pods(rendered(tmp_path))[role]["spec"]
    name = before["containers"][0]["name"]
    extra = {
        "schedulerName": "volcano",
        "securityContext": {"runAsUser": None, "supplementalGroups": [7]},
        "initContainers": [{"name": "fetch", "image": "fetcher:1"}],
        "volumes": [
            {"name": "certs", "secret": {"secretName": "ca"}},
            {"name": "tmp", "emptyDir": {"medium": "Memory"}},
        ],
        "containers": [
            {
                "name": name,
                "envFrom": [{"secretRef": {"name": "more"}}],
                "env": [{"name": "HOME", "value": "/home"}],
                "volumeMounts": [{"name": "certs", "mountPath": "/certs"}],
            },
            {"name": "sidecar", "image": "sidecar:1"},
        ],
    }
    pod = pods(rendered(tmp_path, {"pods": {role: {"extra": extra}}}))[role]
    after = pod["spec"]
    assert (after["schedulerName"], after["initContainers"]) == ("volcano", extra["initContainers"])
    security = {**before["securityContext"], "supplementalGroups": [7]}
    del security["runAsUser"]
    assert after["securityContext"] == security
    own, sidecar = after["containers"]
    assert sidecar == {"name": "sidecar", "image": "sidecar:1"}
    variables = {v["name"]: v.get("value") for v in own["env"]}
    assert variables.pop("HOME") == "/home"
    assert variables.items() <= {v["name"]: v.get("value") for v in before["containers"][0]["env"]}.items()
    assert own["envFrom"] == [{"secretRef": {"name": "more"}}]
    assert own["volumeMounts"] == [
        *before["containers"][0]["volumeMounts"],
        {"name": "certs", "mountPath": "/certs"},
    ]
    assert len(after["volumes"]) == len(before["volumes"]) + 1
    (limit,) = (volume["emptyDir"] for volume in before["volumes"] if volume["name"] == "tmp")
    assert {"name": "tmp", "emptyDir": {"medium": "Memory", **limit}} in after["volumes"]
    changed = {"schedulerName", "initContainers", "securityContext", "containers", "volumes"}
    assert {k: v for k, v in after.items() if k not in changed} == {
        k: v for k, v in before.items() if k not in changed
    }
    whole = {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {**pod["metadata"], "name": "pod"}}
    kubernetes_validate.validate(whole, "1.34", strict=True)


def test_lists_without_names_are_replaced(tmp_path: Path) -> None:
    values = {
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "extra": {
            "tolerations": [{"key": "b", "operator": "Exists"}],
            "containers": [{"name": "router", "command": ["x"]}],
        },
    }
    spec = pods(rendered(tmp_path, {"pods": {"router": values}}))["router"]["spec"]
    assert spec["tolerations"] == [{"key": "b", "operator": "Exists"}]
    assert spec["containers"][0]["command"] == ["x"]


@pytest.mark.parametrize("key", ["flyserve.io/role", "app.kubernetes.io/name", "helm.sh/chart"])
def test_labels_of_the_chart_are_its_own(key: str, tmp_path: Path) -> None:
    for values in ({"commonLabels": {key: "x"}}, {"pods": {"target": {"labels": {key: "x"}}}}):
        with pytest.raises(ChartError, match="abels"):
            rendered(tmp_path, values)


def test_common_labels_are_on_every_object_and_pod_and_in_no_selector(tmp_path: Path) -> None:
    values = yaml.safe_load(CPU_DEMO.read_text()) | {"commonLabels": {"cost-center": "42"}}
    values["models"] = {"persistence": {"size": "1Gi"}}
    before, after = rendered(tmp_path, {**values, "commonLabels": {}}), rendered(tmp_path, values)
    assert {"PersistentVolumeClaim", "RayCluster", "NetworkPolicy"} <= {m["kind"] for m in after}
    for manifest in [*after, *pod_templates(after)]:
        assert manifest["metadata"]["labels"]["cost-center"] == "42", manifest["metadata"]

    def selectors(node: Any) -> list[Any]:
        if isinstance(node, list):
            return [found for item in node for found in selectors(item)]
        if not isinstance(node, dict):
            return []
        own = [value for key, value in node.items() if "elector" in key or key == "matchLabels"]
        return own + [found for value in node.values() for found in selectors(value)]

    assert selectors(after) == selectors(before)


def test_objects_can_be_annotated_and_queued(tmp_path: Path) -> None:
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/models"}
    values = {
        "serviceAccount": {"annotations": role},
        "models": {"persistence": {"size": "1Gi", "annotations": {"backup": "no"}}},
        "ray": {"labels": {"kueue.x-k8s.io/queue-name": "gpus"}, "annotations": {"owner": "search"}},
    }
    manifests = rendered(tmp_path, values)
    assert one(manifests, "ServiceAccount")["metadata"]["annotations"] == role
    claim = one(manifests, "PersistentVolumeClaim")["metadata"]["annotations"]
    assert claim == {"backup": "no", "helm.sh/resource-policy": "keep"}
    cluster = one(manifests, "RayCluster")["metadata"]
    assert cluster["annotations"] == {"owner": "search"}
    assert cluster["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"


def test_further_objects_are_templates(tmp_path: Path) -> None:
    name = '{{ include "flyserve.fullname" . }}'
    as_text = f"apiVersion: v1\nkind: Secret\nmetadata: {{name: '{name}-text'}}"
    as_mapping = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{name}-mapping"}}
    manifests = rendered(tmp_path, {"extraObjects": [as_text, as_mapping]})
    names = [m["metadata"]["name"] for m in manifests if m["kind"] == "Secret"]
    assert names == ["demo-flyserve-text", "demo-flyserve-mapping"]


def test_security_contexts_can_be_changed(tmp_path: Path) -> None:
    """OpenShift chooses the users itself."""
    values = {
        "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
        "securityContext": {"privileged": False},
    }
    for pod in pod_templates(rendered(tmp_path, values)):
        assert pod["spec"]["securityContext"] == {
            "runAsNonRoot": True,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["privileged"] is False
            assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_a_role_has_an_image_of_its_own(tmp_path: Path) -> None:
    image = {"repository": "here/slim", "pullPolicy": "Always", "pullSecrets": ["theirs"]}
    values = {"image": {"tag": "7"}, "pods": {"router": {"image": image}, "test": {"image": {"tag": "8"}}}}
    manifests = rendered(tmp_path, values)
    found = images(tmp_path, values)
    assert (found.pop("router"), found.pop("test")) == ("here/slim:7", "flyserve:8")
    assert set(found.values()) == {"flyserve:7"}
    router = pods(manifests)["router"]["spec"]
    assert router["imagePullSecrets"] == [{"name": "theirs"}]
    assert router["containers"][0]["imagePullPolicy"] == "Always"


def test_a_digest_replaces_the_tag_and_a_tag_of_a_role_the_digest(tmp_path: Path) -> None:
    values = {"image": {"tag": "7", "digest": DIGEST}, "pods": {"router": {"image": {"tag": "8"}}}}
    found = images(tmp_path, values)
    assert found.pop("router") == "flyserve:8"
    assert set(found.values()) == {f"flyserve@{DIGEST}"}
    with pytest.raises(ChartError, match=r"image\.digest"):
        rendered(tmp_path, {"image": {"digest": "sha256:12"}})


def test_workers_on_vllm_need_a_digest_of_their_own(tmp_path: Path) -> None:
    values: dict[str, Any] = {"image": {"digest": DIGEST}, "target": {"engine": "vllm"}}
    with pytest.raises(ChartError, match=r"image\.digest: .*give theirs in pods\.target\.image\.digest"):
        rendered(tmp_path, values)
    theirs = DIGEST[:-1] + "0"
    values["pods"] = {"target": {"image": {"digest": theirs}}}
    assert images(tmp_path, values)["target"] == f"flyserve@{theirs}"


def test_a_second_cluster_s_image_comes_before_that_of_a_role(tmp_path: Path) -> None:
    values = {
        "image": {"tag": "1"},
        "pods": {"target": {"image": {"tag": "1-mine"}}},
        "ray": {"standby": {"name": "green", "image": {"tag": "2"}}},
    }
    clusters = [m for m in rendered(tmp_path, values) if m["kind"] == "RayCluster"]
    groups = [cluster["spec"]["workerGroupSpecs"][0] for cluster in clusters]
    found = [group["template"]["spec"]["containers"][0]["image"] for group in groups]
    assert found == ["flyserve:1-mine", "flyserve:2"]


def test_the_autoscaler_s_resources_are_a_value(tmp_path: Path) -> None:
    values = {"ray": {"autoscaling": {"resources": {"limits": {"cpu": "1", "memory": "2Gi"}}}}}
    options = one(rendered(tmp_path, values), "RayCluster")["spec"]["autoscalerOptions"]
    assert options["resources"]["limits"] == {"cpu": "1", "memory": "2Gi"}
    assert options["resources"]["requests"] == {"cpu": "200m", "memory": "512Mi"}
