import json
from collections.abc import Iterator
from typing import Any

import yaml

from orchestration.deployment.file import Deployment
from tools import chart_schema as schema
from tools.chart import CHART, template

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads(schema.OUTPUT.read_text())


def keys(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for key, value in node.get("properties", {}).items():
        yield f"{path}{key}", value
        yield from keys(value, f"{path}{key}.")


def paths(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from paths(value, f"{prefix}{key}.")


def test_every_key_is_described() -> None:
    wordless = [path for path, key in keys(SCHEMA) if len(key.get("description", "")) < 8 and "." in path]
    assert wordless == []


def test_every_object_rejects_unknown_keys() -> None:
    """But for those that are Kubernetes' own, and the arguments of another engine."""
    theirs = {
        "requests",
        "limits",
        "nodeSelector",
        "affinity",
        "annotations",
        "labels",
        "global",
        "engine_args",
        "commonLabels",
        "podSecurityContext",
        "securityContext",
        "extra",
    }
    for path, key in keys(SCHEMA):
        if key.get("type") in ("object", ["object", "null"]) and path.rpartition(".")[2] not in theirs:
            assert key["additionalProperties"] is False, path


def test_the_values_are_few_and_each_is_in_the_schema() -> None:
    text = (CHART / "values.yaml").read_text()
    assert len(text.splitlines()) <= 300
    known = {path for path, _ in keys(SCHEMA)}
    listed = {"monitoring.dashboards.labels.grafana_dashboard"}
    theirs = (".requests.", ".limits.", "ecurityContext.")
    listed |= {path for path in paths(VALUES) if any(part in path for part in theirs)}
    assert set(paths(VALUES)) - listed <= known


def test_the_values_file_shows_every_key_about_pods() -> None:
    text = (CHART / "values.yaml").read_text()
    served = tuple(Deployment.model_fields)
    own = (path for path, _ in keys(SCHEMA) if path.partition(".")[0] not in served)
    # The values of a second cluster are copies.
    names = {path.rpartition(".")[2] for path in own if not path.startswith("ray.standby.values.")}
    assert len(names) > 70
    assert [name for name in sorted(names - {"global"}) if f"{name}:" not in text] == []


def test_a_bare_off_of_yaml_is_taken(tmp_path: Any) -> None:
    path = tmp_path / "values.yaml"
    path.write_text("drafter: {draft_ahead: off}")
    assert "draft_ahead: false" in template(path)
