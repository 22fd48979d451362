"""Run the chart's rendered files and commands, with this machine instead of a cluster."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import psutil
import pytest
import yaml
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from ray.job_submission import JobSubmissionClient

from orchestration.deployment.file import APPLICATION_ROOT
from orchestration.local.local_ray import prepare_environment, temporary_folder
from tests.chart.charts import CPU_DEMO, SECRETS, SECURED, Manifest, fill, one, pod_templates, rendered
from tests.support.secret_mounts import MountedSecrets

pytestmark = pytest.mark.timeout(600)

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
"""Replacements of the cluster's addresses and ports by this machine's; port 0 is any free one."""


@pytest.fixture(autouse=True)
def _commands_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", os.pathsep.join([scripts, os.environ["PATH"]]))


def deployment_file(manifests: list[Manifest], folder: Path, **more: str) -> Path:
    """Write the deployment file of the ConfigMap, adapted to this machine."""
    text = one(manifests, "ConfigMap", "-config")["data"]["deployment-blue.yaml"]
    for theirs, ours in (LOCAL | more).items():
        text = text.replace(theirs, ours)
    path = folder / "deployment-blue.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def command(manifests: list[Manifest], role: str, **places: str) -> list[str]:
    """Return the command of a role's container, with `places` replaced."""
    pods = (pod for pod in pod_templates(manifests) if pod["metadata"]["labels"]["flyserve.io/role"] == role)
    words: list[str] = next(pods)["spec"]["containers"][0]["command"]
    for theirs, ours in places.items():
        assert theirs in words, words
        words = [ours if word == theirs else word for word in words]
    return words


@contextmanager
def serving(words: list[str]) -> Iterator[str]:
    """Run a command; yield the address at which it is ready."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = next((line for line in process.stdout if line.startswith("ready ")), None)
        if ready is None:
            raise AssertionError(process.communicate()[1])
        yield ready.split()[1]
    finally:
        process.terminate()
        process.communicate(timeout=240)


def generated(manifests: list[Manifest], address: str, **places: str) -> str:
    """Run the command of the `helm test` pod; return its output."""
    words = command(manifests, "test", **{"demo-flyserve:50051": address, **places})
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_deployment_file_of_the_cpu_example_starts(tmp_path: Path) -> None:
    manifests = rendered(tmp_path, None, CPU_DEMO)
    file = deployment_file(manifests, tmp_path)
    with serving(["flyserve", "up", str(file), "--startup-timeout-s", "400"]) as address:
        assert "books" in generated(manifests, address)


def test_the_secured_example_serves_with_its_secrets_and_reloads_them(
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
            answer = HealthStub(channel).Check(probe, timeout=240)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        # Replace all of them at once: authority, certificates, token.
        monkeypatch.setenv("FLYSERVE_TOKEN", fill(secrets, tmp_path / "second"))
        assert "books" in generated(manifests, address, **places)


def test_the_commands_of_job_and_router_run_against_ray(tmp_path: Path) -> None:
    values = {"target": {"replicas": 1}, "drafter": None, "apply": {"timeoutSeconds": 400}}
    manifests = rendered(tmp_path, values)
    file, mounted = deployment_file(manifests, tmp_path), "/etc/flyserve/deployment-blue.yaml"
    (tmp_path / "weights").symlink_to(APPLICATION_ROOT / "demo/models/target")
    file.write_text(file.read_text().replace("demo/models/target", "weights"))
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

        (job, *_) = JobSubmissionClient(dashboard).list_jobs()
        assert "flyserve apply deployment.yaml" in job.entrypoint, "nobody may read the file there"
        children = psutil.Process().children(recursive=True)
        actors = [process for process in children if process.name() == "ray::TargetActor"]
        assert actors
        assert all("working_dir_files" not in process.cwd() for process in actors)

        file.write_text(file.read_text().replace("weights", "absent"))
        rejected = subprocess.run(apply, capture_output=True, text=True)
        assert rejected.returncode == 2
        assert "target.model: no folder absent" in rejected.stderr


@contextmanager
def ray_head(cluster: Manifest) -> Iterator[str]:
    """Start Ray with one node that has the marks of all workers; yield its dashboard's URL."""
    prepare_environment()
    from ray.cluster_utils import Cluster

    marks: dict[str, float] = {}
    for group in cluster["spec"]["workerGroupSpecs"]:
        marks |= yaml.safe_load(yaml.safe_load(group["rayStartParams"]["resources"]))
    with temporary_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(folder))
        (folder / "ray").mkdir()
        port = _free_port()
        # NOTE: jobs need the agent; another Ray on this machine may use its default port.
        places = {"dashboard_port": port, "dashboard_agent_listen_port": _free_port()}
        head = {"num_cpus": 4, "resources": marks, "include_dashboard": True, **places}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            # NOTE: `ray start` writes this file in a pod, and jobs find their Ray by it.
            (folder / "ray" / "ray_current_cluster").write_text(cluster.address)
            yield f"http://127.0.0.1:{port}"
        finally:
            cluster.shutdown()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
