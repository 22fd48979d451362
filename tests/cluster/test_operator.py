"""A whole deployment under KubeRay's operator: it serves, survives losses, and moves to a second cluster."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.chart.charts import CPU_DEMO
from tests.cluster.cluster_rig import Cluster, Values
from tools.chart import CHART

PROMPT = "Karl has 7 books. Now Karl loses 3 books. How many books does Karl have now?\n"
STREAMS = 8


@pytest.fixture(scope="module")
def values(image: Values) -> Values:
    """The example for CPUs with a second target, so that one may be lost."""
    demo = yaml.safe_load(CPU_DEMO.read_text())
    return {**demo, "image": image, "target": {"replicas": 2}, "speculation": {"mode": "exact"}}


@pytest.fixture(scope="module")
def serving(operator: None, cluster: Cluster, values: Values) -> Iterator[Cluster]:
    cluster.install("demo", values, "--wait", "--wait-for-jobs", "--timeout", "30m")
    yield cluster
    cluster.helm("uninstall", "demo", "--wait")


def router(cluster: Cluster) -> str:
    return cluster.names("pods", "--selector", "flyserve.io/role=router")[0]


def generate(cluster: Cluster, pod: str) -> list[int]:
    """Return the tokens of a long response."""
    flags = ("--max-new-tokens", "200", "--json", "--address", "127.0.0.1:50051")
    text = cluster.kubectl("exec", pod, "--", "flyserve", "generate", PROMPT, *flags)
    return [token["id"] for token in json.loads(text)["choices"][0]["tokens"]]


def evict(cluster: Cluster, pod: str) -> None:
    """Evict a pod as `kubectl drain` does."""
    metadata = {"name": pod, "namespace": cluster.namespace}
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{pod}/eviction"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    cluster.kubectl("create", "--raw", path, "-f", "-", given=eviction)


def test_the_test_of_the_release_passes_without_a_warning(serving: Cluster) -> None:
    logs = serving.helm("test", "demo", "--logs", "--timeout", "10m")
    assert "Succeeded" in logs and "warning" not in logs.lower(), logs


def test_streams_outlive_the_eviction_of_a_target(serving: Cluster) -> None:
    pod = router(serving)
    expected = generate(serving, pod)
    found: list[Any] = []
    streams = [threading.Thread(target=lambda: found.append(generate(serving, pod))) for _ in range(STREAMS)]
    for stream in streams:
        stream.start()
    target = serving.names("pods", "--selector", "flyserve.io/role=target")[0].rpartition("/")[2]
    evict(serving, target)
    for stream in streams:
        stream.join()
    assert found == [expected] * STREAMS


def test_the_deployment_comes_back_after_the_loss_of_the_head(serving: Cluster) -> None:
    expected = generate(serving, router(serving))
    (head,) = serving.names("pods", "--selector", "flyserve.io/role=head")
    serving.kubectl("delete", head, "--wait=true")
    selector = ("pods", "--selector", "flyserve.io/role=head")
    serving.wait_for(lambda: [name for name in serving.names(*selector) if name != head])
    serving.kubectl("wait", *selector, "--for=condition=Ready", "--timeout=30m")
    # The CronJob would do it within ten minutes.
    serving.kubectl("create", "job", "again", "--from=cronjob/demo-flyserve-blue-reapply")
    serving.kubectl("wait", "job/again", "--for=condition=Complete", "--timeout=30m")
    serving.kubectl("rollout", "status", "deployment/demo-flyserve-router", "--timeout=30m")
    assert generate(serving, router(serving)) == expected


def test_an_upgrade_moves_to_a_second_cluster(serving: Cluster, values: Values, tmp_path: Any) -> None:
    expected = generate(serving, router(serving))
    file = tmp_path / "values.yaml"
    head = {**values["pods"]["head"], "resources": {"requests": {"cpu": "900m"}}}
    file.write_text(yaml.safe_dump({**values, "pods": {**values["pods"], "head": head}}), encoding="utf-8")
    words = (sys.executable, "-m", "flyserve", "upgrade", "demo", str(CHART), "--values", str(file))
    done = subprocess.run(
        [*words, "--namespace", serving.namespace], env=serving.environment, capture_output=True, text=True
    )
    assert done.returncode == 0 and "done: set ray.active to green" in done.stdout, done.stdout + done.stderr
    assert len(serving.names("rayclusters")) == 1
    assert generate(serving, router(serving)) == expected
