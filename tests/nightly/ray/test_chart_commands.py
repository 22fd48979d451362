"""Run further rendered files and commands of the chart with this machine instead of a cluster."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import yaml
from ray.job_submission import JobSubmissionClient

from orchestration.deployment.file import APPLICATION_ROOT
from tests.chart.charts import Manifest, one, rendered
from tests.support.chart_on_ray import HEAD, command, deployment_file, free_port, generated, serving
from tests.support.ray_nodes import ray_nodes


@pytest.fixture(autouse=True)
def _commands_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", os.pathsep.join([scripts, os.environ["PATH"]]))


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
    marks: dict[str, float] = {}
    for group in cluster["spec"]["workerGroupSpecs"]:
        marks |= yaml.safe_load(yaml.safe_load(group["rayStartParams"]["resources"]))
    port = free_port()
    # NOTE: jobs need the agent; another Ray on this machine may use its default port.
    places = {"dashboard_port": port, "dashboard_agent_listen_port": free_port()}
    with ray_nodes(num_cpus=4, resources=marks, include_dashboard=True, **places) as (head, folder):
        # NOTE: `ray start` writes this file in a pod, and jobs find their Ray by it.
        (folder / "ray" / "ray_current_cluster").write_text(head.address)
        yield f"http://127.0.0.1:{port}"
