"""What the chart renders is what runs: its files and commands, with this machine in place of the cluster."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from orchestration.local.local_ray import prepare_environment, temporary_folder
from tests.helm.charts import CPU_DEMO, SECRETS, SECURED, Manifest, fill, one, pod_templates, rendered
from tests.support.secret_mounts import MountedSecrets

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HEAD = "demo-flyserve-head-blue"
LOCAL = {
    f"advertised_host: {HEAD}": "advertised_host: null",
    HEAD: "127.0.0.1",
    "0.0.0.0": "127.0.0.1",
    "port: 50052": "port: 0",
    "port: 50051": "port: 0",
    "port: 8000": "port: 0",
    "port: 9400": "port: 0",
}
"""What is said of the cluster, and of this machine instead; ports are any free ones."""


@pytest.fixture(autouse=True)
def _commands_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", os.pathsep.join([beside, os.environ["PATH"]]))


def deployment_file(manifests: list[Manifest], folder: Path, **more: str) -> Path:
    """The deployment file of the ConfigMap, for this machine."""
    text = one(manifests, "ConfigMap", "-config")["data"]["deployment-blue.yaml"]
    for theirs, ours in (LOCAL | more).items():
        text = text.replace(theirs, ours)
    path = folder / "deployment-blue.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def command(manifests: list[Manifest], role: str, **places: str) -> list[str]:
    """The command of a role's container, with other places in it."""
    pods = (pod for pod in pod_templates(manifests) if pod["metadata"]["labels"]["flyserve.io/role"] == role)
    words: list[str] = next(pods)["spec"]["containers"][0]["command"]
    for theirs, ours in places.items():
        assert theirs in words, words
        words = [ours if word == theirs else word for word in words]
    return words


@contextmanager
def serving(words: list[str]) -> Iterator[str]:
    """A running command, by the address that it says it is ready at."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = next((line for line in process.stdout if line.startswith("ready ")), None)
        if ready is None:
            raise AssertionError(process.communicate()[1])
        yield ready.split()[1]
    finally:
        process.terminate()
        process.communicate(timeout=60)


def generated(manifests: list[Manifest], address: str, **places: str) -> str:
    """What the pod of `helm test` prints."""
    words = command(manifests, "test", **{"demo-flyserve:50051": address, **places})
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_deployment_file_of_the_cpu_example_starts(tmp_path: Path) -> None:
    manifests = rendered(tmp_path, None, CPU_DEMO)
    file = deployment_file(manifests, tmp_path)
    with serving(["flyserve", "up", str(file), "--startup-timeout-s", "400"]) as address:
        assert "books" in generated(manifests, address)


def test_the_secured_example_serves_with_its_secrets_and_takes_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"target": {"replicas": 1}, "router": {"http_port": None}}
    manifests = rendered(tmp_path, values, SECURED)
    secrets = MountedSecrets(pod_templates(manifests), tmp_path)
    here, health_port = {SECRETS: f"{tmp_path}{SECRETS}"}, _free_port()
    file = deployment_file(manifests, tmp_path, **here, **{"port: 50053": f"port: {health_port}"})
    words = command(manifests, "test")
    places = {word: word.replace(SECRETS, here[SECRETS]) for word in words if word.startswith(SECRETS)}
    assert len(places) == 3
    monkeypatch.setenv("FLYSERVE_TOKEN", fill(secrets, tmp_path / "first"))
    with serving(["flyserve", "up", str(file), "--startup-timeout-s", "400"]) as address:
        address = address.replace("127.0.0.1", "localhost")
        assert "books" in generated(manifests, address, **places)
        with grpc.insecure_channel(f"127.0.0.1:{health_port}") as channel:
            probe = health_pb2.HealthCheckRequest(service="flyserve.v1.Generation")
            answer = HealthStub(channel).Check(probe, timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        # All of them at once: another authority, other certificates, another token.
        monkeypatch.setenv("FLYSERVE_TOKEN", fill(secrets, tmp_path / "second"))
        assert "books" in generated(manifests, address, **places)


def test_the_commands_of_job_and_router_start_against_a_ray(tmp_path: Path) -> None:
    values = {"target": {"replicas": 1}, "drafter": None, "apply": {"timeoutSeconds": 400}}
    manifests = rendered(tmp_path, values)
    file, mounted = deployment_file(manifests, tmp_path), "/etc/flyserve/deployment-blue.yaml"
    with ray_head(one(manifests, "RayCluster")) as dashboard:
        places = {mounted: str(file), f"http://{HEAD}:8265": dashboard}
        apply = command(manifests, "apply", **places)
        done = subprocess.run(apply, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        again = subprocess.run(apply, capture_output=True, text=True)
        assert "default: unchanged" in again.stdout, again.stdout + again.stderr

        registry = done.stdout.split("registry ")[1].split()[0]
        places = {mounted: str(file), f"{HEAD}:50052": registry}
        with serving(command(manifests, "router", **places)) as address:
            assert "books" in generated(manifests, address)

        file.write_text(file.read_text().replace("demo/models/target", "demo/models/absent"))
        rejected = subprocess.run(apply, capture_output=True, text=True)
        assert rejected.returncode == 2
        assert "target.model: no folder demo/models/absent" in rejected.stderr


@contextmanager
def ray_head(cluster: Manifest) -> Iterator[str]:
    """A Ray of one node that is marked as the workers of a cluster are; the address of its dashboard."""
    prepare_environment()
    from ray.cluster_utils import Cluster

    marks: dict[str, float] = {}
    for group in cluster["spec"]["workerGroupSpecs"]:
        marks |= yaml.safe_load(yaml.safe_load(group["rayStartParams"]["resources"]))
    with temporary_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(folder))
        (folder / "ray").mkdir()
        port = _free_port()
        # NOTE: the agent's port, as other Rays here may have its usual one: no agent, no jobs.
        places = {"dashboard_port": port, "dashboard_agent_listen_port": _free_port()}
        head = {"num_cpus": 4, "resources": marks, "include_dashboard": True, **places}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            # NOTE: as `ray start` does in a pod: jobs look for their Ray there, else anywhere.
            (folder / "ray" / "ray_current_cluster").write_text(cluster.address)
            yield f"http://127.0.0.1:{port}"
        finally:
            cluster.shutdown()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
