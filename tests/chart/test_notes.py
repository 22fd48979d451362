"""The notes that helm prints after an installation."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestration.deployment.plan import router_config
from router.config import RouterConfig
from router.servicer import SERVICE_NAME
from services.common.config import parse
from tests.chart.charts import (
    SECURED,
    Manifest,
    deployments,
    objects,
    one,
    pod_templates,
    rendered,
    shown_notes,
)
from tools.chart import CHART
from tools.chart_goldens import EXAMPLES, RENDERED


def written(folder: Path, values: dict[str, Any]) -> Path:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    return file


def test_the_notes_have_lines_to_try(tmp_path: Path) -> None:
    notes = shown_notes(tmp_path)
    assert "helm test demo" in notes
    assert "grpcurl -plaintext" in notes and f"{SERVICE_NAME}/Generate" in notes
    assert "ray.gcsFaultTolerance" in notes
    assert "looked up" not in notes
    assert "(drafter.engine suffix): no draft model" in shown_notes(
        tmp_path, CHART / "examples" / "lookup.yaml"
    )
    secured = shown_notes(tmp_path, SECURED)
    assert "helm test demo" in secured and "-plaintext" not in secured
    assert "grpcurl -cacert ca.crt -authority demo-flyserve -cert client.crt -key client.key" in secured
    assert secured.count('uthorization: Bearer $TOKEN"') == 2
    assert "--resolve demo-flyserve:8000:127.0.0.1" in secured and "https://demo-flyserve:8000/v1" in secured


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_notes_name_the_model_as_routers_do(example: Path, tmp_path: Path) -> None:
    (shown,) = re.findall(r'-d \'(.*"model".*)\'', shown_notes(tmp_path, example))
    made = deployments(objects((RENDERED / example.name).read_text()), tmp_path)[0]
    config = parse(RouterConfig, router_config(made, "registry:1", 60.0, 5.0), "router")
    assert json.loads(shown)["model"] == config.served_name


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"secrets": {"testToken": {"name": ""}}}, "name secrets.testToken"),
        ({"secrets": {"tls": {"client": ""}}}, "secrets.tls.client"),
    ],
)
def test_who_cannot_be_let_in_is_not_sent(values: Any, said: str, tmp_path: Path) -> None:
    roles = [
        pod["metadata"]["labels"]["flyserve.io/role"]
        for pod in pod_templates(rendered(tmp_path, values, SECURED))
    ]
    assert "test" not in roles and "router" in roles
    notes = shown_notes(tmp_path, SECURED, written(tmp_path, values))
    assert said in notes and "helm test demo" not in notes


def test_keys_in_plaintext_are_warned_of(tmp_path: Path) -> None:
    values = {"security": {"auth_tokens_file": "keys.yaml"}, "secrets": {"authTokens": "keys"}}
    assert rendered(tmp_path, values)
    assert "API keys travel in plaintext" in shown_notes(tmp_path, written(tmp_path, values))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    return rendered(tmp_path_factory.mktemp("installed"))


def test_the_notes_name_what_running_pods_do_not_get(installed: list[Manifest], tmp_path: Path) -> None:
    values = {
        "pods": {
            "target": {"nodeSelector": {"pool": "a"}, "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]},
            "head": {"tmpSize": "9Gi"},
        }
    }
    notes = shown_notes(tmp_path, written(tmp_path, values), live=installed)
    assert "demo-flyserve-blue (target): env.NCCL_DEBUG, nodeSelector\n" in notes
    assert "demo-flyserve-blue (head): volume of tmp\n" in notes
    assert "flyserve upgrade --replace" in notes
    assert "Running pods" not in shown_notes(tmp_path, live=installed)
    assert "Running pods" not in shown_notes(tmp_path, written(tmp_path, values))


def test_the_notes_warn_of_a_rollback_to_a_cluster_that_is_removed(
    installed: list[Manifest], tmp_path: Path
) -> None:
    both = {"ray": {"active": "green", "standby": {"name": "blue"}}}
    live = [m for m in rendered(tmp_path, both) if m["kind"] == "RayCluster"]
    swapped = shown_notes(tmp_path, written(tmp_path, both), live=live)
    alone = shown_notes(tmp_path, written(tmp_path, {"ray": {"active": "green"}}), live=live)
    assert "RayCluster demo-flyserve-blue is removed. helm rollback" in alone and "rollback" not in swapped


def test_what_the_api_server_adds_to_a_cluster_is_no_change(
    installed: list[Manifest], tmp_path: Path
) -> None:
    cluster = copy.deepcopy(one(installed, "RayCluster"))
    for pod in pod_templates([cluster]):
        for port in pod["spec"]["containers"][0]["ports"]:
            port["protocol"] = "TCP"
    for group in cluster["spec"]["workerGroupSpecs"]:
        group |= {"numOfHosts": 1, "priority": 0, "replicas": 3, "scaleStrategy": {"workersToDelete": []}}
    assert "Running pods" not in shown_notes(tmp_path, live=[cluster])


def test_the_notes_say_how_many_routers_end_where_autoscaling_does(
    installed: list[Manifest], tmp_path: Path
) -> None:
    deployment = copy.deepcopy(one(installed, "Deployment"))
    deployment["spec"]["replicas"] = 6
    assert "Routers go from 6 to 2 at once" in shown_notes(tmp_path, live=[deployment])
    assert "Routers go" not in shown_notes(tmp_path, live=installed)


def test_the_notes_have_the_size_of_what_starts(tmp_path: Path) -> None:
    assert "All pods together request 7.3 CPUs and 17 GiB of memory" in shown_notes(tmp_path)
    demo = shown_notes(tmp_path, CHART / "examples" / "cpu-demo.yaml")
    # It fits beside what a node of four cores and 16 GiB runs itself.
    (cpus, memory) = re.findall(r"request ([\d.]+) CPUs and ([\d.]+) GiB", demo)[0]
    assert float(cpus) <= 3 and float(memory) <= 13
