"""Run the chart's secured example with this machine instead of a cluster: TLS, API keys, their renewal."""

import os
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from tests.chart.charts import SECRETS, SECURED, fill, pod_templates, rendered
from tests.support.chart_on_ray import command, deployment_file, free_port, generated, serving
from tests.support.secret_mounts import MountedSecrets


@pytest.fixture(autouse=True)
def _commands_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", os.pathsep.join([scripts, os.environ["PATH"]]))


def test_the_secured_example_serves_with_its_secrets_and_reloads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"target": {"replicas": 1, "threads": "auto"}, "router": {"http_port": None}}
    manifests = rendered(tmp_path, values, SECURED)
    secrets = MountedSecrets(pod_templates(manifests), tmp_path)
    here, health_port = {SECRETS: f"{tmp_path}{SECRETS}"}, free_port()
    file = deployment_file(manifests, tmp_path, **here, **{"port: 50053": f"port: {health_port}"})
    # NOTE: by its name, commands tell it from the other deployments of this machine.
    file.write_text(f"name: secured-{os.getpid()}\n{file.read_text()}")
    words = command(manifests, "test")
    places = {word: word.replace(SECRETS, here[SECRETS]) for word in words if word.startswith(SECRETS)}
    assert len(places) == 3
    monkeypatch.setenv("FLYSERVE_TOKEN", fill(secrets, tmp_path / "first"))
    with serving(["flyserve", "up", str(file), "--startup-timeout-s", "800"]) as address:
        address = address.replace("127.0.0.1", "localhost")
        assert "books" in generated(manifests, address, **places)
        with grpc.insecure_channel(f"127.0.0.1:{health_port}") as channel:
            probe = health_pb2.HealthCheckRequest(service="flyserve.v1.Generation")
            answer = HealthStub(channel).Check(probe, timeout=600)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        again = subprocess.run(["flyserve", "apply", str(file)], capture_output=True, text=True, timeout=600)
        assert again.returncode == 0, again.stderr
        assert again.stdout.splitlines()[0].endswith(": unchanged"), "it keeps what up has settled"
        # Replace all of them at once: authority, certificates, token.
        monkeypatch.setenv("FLYSERVE_TOKEN", fill(secrets, tmp_path / "second"))
        assert "books" in generated(manifests, address, **places)
