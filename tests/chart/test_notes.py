"""The notes that helm prints after an installation."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestration.deployment.plan import router_config
from router.config import RouterConfig
from router.servicer import SERVICE_NAME
from services.common.config import parse
from tests.chart.charts import SECURED, deployments, objects, pod_templates, rendered
from tools.chart import CHART, template
from tools.chart_goldens import EXAMPLES, RENDERED


def shown_notes(folder: Path, *files: Path) -> str:
    """Helm itself shows notes only to who has a cluster."""
    chart = folder / "flyserve"
    shutil.copytree(CHART, chart, dirs_exist_ok=True)
    shown = 'notes: |\n  {{- include (print $.Template.BasePath "/NOTES.txt") . | nindent 2 }}\n'
    (chart / "templates" / "shown.yaml").write_text(shown, encoding="utf-8")
    (notes,) = (m["notes"] for m in objects(template(*files, chart=chart)) if "notes" in m)
    return str(notes)


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
