import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import utils as schemas

from tests.chart.charts import Manifest, objects, one, pod_templates
from tools import chart_schema as schema
from tools.chart import GATEWAY_API, KEDA_API, RAY_API, lint, template
from tools.chart_goldens import EXAMPLES, RENDERED

OWN_SCHEMA = yaml.safe_load((Path(__file__).parent / "raycluster.schema.yaml").read_text())
KUBERNETES = [f"1.{minor}" for minor in range(28, 38)]
CUSTOM = (RAY_API, GATEWAY_API, KEDA_API)
"""APIs whose objects Kubernetes' own schemas do not know."""

each_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)


@pytest.fixture(scope="module", autouse=True)
def _reads_each_schema_once() -> Iterator[None]:
    """Keep Kubernetes' schemas, of megabytes, instead of reading them again for every object."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schemas, "schema_contents", cache(schemas.schema_contents))
        yield


@cache
def manifests_of(example: Path) -> list[Manifest]:
    return objects((RENDERED / example.name).read_text())


def test_the_chart_has_no_fault() -> None:
    assert "0 chart(s) failed" in lint()


@each_example
def test_an_example_has_no_fault_and_renders_as_committed(example: Path) -> None:
    lint(example)
    assert template(example) == (RENDERED / example.name).read_text(), "run make goldens"


def test_nothing_is_rendered_of_examples_that_are_gone() -> None:
    assert {path.name for path in RENDERED.glob("*.yaml")} == {path.name for path in EXAMPLES}


def test_the_schema_is_the_one_of_the_code() -> None:
    assert schema.OUTPUT.read_text() == schema.rendered(), "run make goldens"


def distinct(manifests: Iterable[Manifest]) -> list[Manifest]:
    return list({json.dumps(manifest, sort_keys=True): manifest for manifest in manifests}.values())


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_takes_every_core_object(version: str) -> None:
    everything = (manifest for example in EXAMPLES for manifest in manifests_of(example))
    core = distinct(manifest for manifest in everything if manifest["apiVersion"] not in CUSTOM)
    assert {"Deployment", "Service", "ConfigMap", "NetworkPolicy"} <= {manifest["kind"] for manifest in core}
    for manifest in core:
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_takes_the_pods_of_ray(version: str) -> None:
    """The slim schema of the custom resource says little of them."""
    clusters = [m for example in EXAMPLES for m in manifests_of(example) if m["kind"] == "RayCluster"]
    pods = distinct(pod_templates(clusters))
    assert len(pods) > 1, "the head's and the workers'"
    for pod in pods:
        metadata = {"name": "worker", **pod["metadata"]}
        pod = {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": metadata}
        kubernetes_validate.validate(pod, version, strict=True)


@each_example
def test_ray_clusters_keep_to_the_fields_that_kuberay_knows(example: Path) -> None:
    clusters = [manifest for manifest in manifests_of(example) if manifest["kind"] == "RayCluster"]
    assert clusters
    for cluster in clusters:
        jsonschema.validate(cluster, OWN_SCHEMA)


def test_rays_autoscaler_understands_what_a_pod_offers() -> None:
    config = pytest.importorskip("ray.autoscaler._private.kuberay.autoscaling_config")
    (example,) = (path for path in EXAMPLES if path.stem == "llama-405b-8b")
    cluster = one(manifests_of(example), "RayCluster")
    cluster["metadata"]["namespace"] = "serving"
    nodes = config._derive_autoscaling_config_from_ray_cr(cluster)["available_node_types"]
    target = nodes["target"]
    assert (target["min_workers"], target["max_workers"]) == (1, 1)
    offered = {key: value for key, value in target["resources"].items() if key != "memory"}
    # 8 shards and 4 drafters, a CPU thread each, on 8 GPUs.
    assert offered == {"CPU": 12, "GPU": 8, "flyserve_target": 1000, "flyserve_drafter": 1000}
    assert nodes["headgroup"]["resources"]["CPU"] == 1


@each_example
def test_pods_run_without_rights_on_a_read_only_file_system(example: Path) -> None:
    pods = pod_templates(manifests_of(example))
    assert len(pods) >= 6
    for pod in pods:
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        is_head = pod["metadata"]["labels"]["flyserve.io/role"] == "head"
        assert is_head or spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert {"memory"} <= container["resources"]["limits"].keys()
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()


@each_example
def test_nothing_reaches_beyond_the_namespace(example: Path) -> None:
    cluster_scoped = {
        "ClusterRole",
        "ClusterRoleBinding",
        "CustomResourceDefinition",
        "Namespace",
        "PriorityClass",
    }
    kinds = {manifest["kind"] for manifest in manifests_of(example)}
    assert not kinds & cluster_scoped
    assert "Secret" not in kinds
