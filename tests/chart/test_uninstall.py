"""`helm uninstall` leaves what docs/kubernetes/upgrade.md says, and nothing else."""

import re
from pathlib import Path

import pytest

from tests.chart.charts import Manifest, objects, one, rendered
from tools.chart import template
from tools.chart_goldens import EXAMPLES

GUIDE = Path("docs/kubernetes/upgrade.md").read_text(encoding="utf-8").partition("\n## Uninstall\n")[2]
KEPT = "helm.sh/resource-policy"
HOOK = "helm.sh/hook"


def annotated(manifests: list[Manifest], key: str) -> dict[tuple[str, str], str]:
    """The objects that have this annotation, by kind and name, with its value."""
    return {
        (m["kind"], m["metadata"]["name"]): m["metadata"]["annotations"][key]
        for m in manifests
        if key in m["metadata"].get("annotations", {})
    }


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_only_the_claim_and_the_test_pod_outlive_a_release(example: Path) -> None:
    manifests = objects(template(example))
    claims = {("PersistentVolumeClaim", m["metadata"]["name"]) for m in manifests if "Claim" in m["kind"]}
    assert annotated(manifests, KEPT) == dict.fromkeys(claims, "keep")
    # Helm deletes no hook with a release: each must be in the guide.
    assert annotated(manifests, HOOK).items() <= {(("Pod", "demo-flyserve-test"), "test")}
    assert not {"Secret", "CustomResourceDefinition", "Namespace"} & {m["kind"] for m in manifests}


def test_the_guide_deletes_what_remains(tmp_path: Path) -> None:
    manifests = rendered(tmp_path, {"models": {"persistence": {"size": "1Gi"}}})
    remaining = annotated(manifests, KEPT) | annotated(manifests, HOOK)
    short = {"pvc": "PersistentVolumeClaim", "pod": "Pod"}
    deleted = re.findall(r"^kubectl -n serving delete (\w+) (\S+)", GUIDE, re.MULTILINE)
    assert {(short[kind], name) for kind, name in deleted} == remaining.keys()


def test_the_volume_of_rocksdb_ends_with_the_cluster(tmp_path: Path) -> None:
    """KubeRay makes it, so helm does not know it."""
    values = {"ray": {"gcsFaultTolerance": {"rocksdb": {"enabled": True, "size": "1Gi"}}}}
    storage = one(rendered(tmp_path, values), "RayCluster")["spec"]["gcsFaultToleranceOptions"]["storage"]
    assert storage.get("deletionPolicy", "DeleteWithCluster") == "DeleteWithCluster"
    assert "claimName" not in storage
