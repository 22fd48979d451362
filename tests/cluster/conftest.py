"""Everything that tests of a cluster need; what is missing is named in one line, and the test is skipped."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyserve.core.version import VERSION
from tests.cluster.cluster_rig import Cluster, Values, image_values, namespace, only_context
from tools.chart import RAY_API

OPERATOR = "app.kubernetes.io/name=kuberay-operator"


def needed(variable: str, content: str) -> str:
    """Return an environment variable, or skip."""
    if not (value := os.environ.get(variable, "")):
        pytest.skip(f"{variable} is not set: {content}")
    return value


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Configuration of kubectl and helm for the named cluster, and no other."""
    context = needed("FLYSERVE_TEST_CONTEXT", "kubectl's context of a cluster for tests")
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH")
    with only_context(context, tmp_path_factory.mktemp("kubeconfig")) as file:
        yield file


@pytest.fixture(scope="module")
def cluster(kubeconfig: Path) -> Iterator[Cluster]:
    """A namespace of this module, on a cluster that knows RayCluster."""
    with namespace(kubeconfig) as made:
        if RAY_API not in made.apis():
            folder = needed("KUBERAY_CRDS", "folder with KubeRay's definitions, which the cluster lacks")
            # Client-side apply would keep a copy of each in an annotation, for which they are too large.
            made.kubectl("apply", "--server-side", "--filename", folder)
            made.wait_for(lambda: RAY_API in made.apis())
        yield made


@pytest.fixture(scope="module")
def image(cluster: Cluster) -> Values:
    """Values that run the named image, which must have the version of these tests."""
    reference = needed("FLYSERVE_IMAGE", "image of this version that the cluster's nodes can pull")
    nodes = cluster.get("nodes")["items"]
    ready = {"type": "Ready", "status": "True"}
    if not any(ready.items() <= each.items() for node in nodes for each in node["status"]["conditions"]):
        pytest.skip("the cluster has no node that is ready")
    has = cluster.run_once("version", reference, "flyserve", "--version")
    assert VERSION in has, f"FLYSERVE_IMAGE: {reference} has {has.strip()}; these tests are of {VERSION}"
    return image_values(reference)


@pytest.fixture(scope="module")
def operator(cluster: Cluster) -> None:
    """KubeRay's operator runs, in any namespace."""
    if not cluster.get("deployments", "--all-namespaces", "--selector", OPERATOR)["items"]:
        pytest.skip(f"KubeRay's operator does not run: no Deployment has the label {OPERATOR}")
