import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestration.deployment.file import Deployment
from tools import chart_schema as schema
from tools.chart import CHART, ChartError, template

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


def absent_keys(node: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return null for every key that may be left out and that these values leave out, or leave empty."""
    made: dict[str, Any] = {}
    for key, inner in node.get("properties", {}).items():
        if key == "standby":
            continue  # its null removes from what it is merged over
        if isinstance(below := values.get(key), dict):
            made[key] = absent_keys(inner, below)
        elif below in (None, "", []) and key not in node.get("required", ()):
            made[key] = None
    return made


def overlaid(values: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    maps = {key for key in over if isinstance(over[key], dict) and isinstance(values.get(key), dict)}
    return {**values, **over, **{key: overlaid(values[key], over[key]) for key in maps}}


@pytest.mark.parametrize("name", ["blue-green", "public", "secured", "vllm-70b-fp8"])
def test_null_is_a_key_that_is_left_out(tmp_path: Path, name: str) -> None:
    """Helm's users write null for a key that a values file before has; here it is for those that none has."""
    example = CHART / "examples" / f"{name}.yaml"
    removed = absent_keys(SCHEMA, overlaid(VALUES, yaml.safe_load(example.read_text())))
    assert len(list(paths(removed))) > 50
    second = tmp_path / "second.yaml"
    second.write_text(yaml.safe_dump(removed))
    assert template(example, second) == template(example)


def test_null_removes_a_key_of_an_earlier_values_file(tmp_path: Path) -> None:
    first, second, rest = (tmp_path / f"{name}.yaml" for name in ("first", "second", "rest"))
    arguments = {
        "engine": "vllm",
        "gpus": 1,
        "engine_args": {"seed": 1, "quantization": "fp8"},
        "max_queued": 9,
    }
    pods = {"target": {"gpus": 1, "priorityClassName": "high"}}
    values = {"target": arguments, "speculation": {"mode": "exact"}, "pods": pods}
    removed = {
        "target": {"engine": None, "engine_args": None, "max_queued": None},
        "speculation": {"mode": None},
    }
    first.write_text(yaml.safe_dump(values))
    second.write_text(yaml.safe_dump(removed))
    rest.write_text(yaml.safe_dump({**values, "target": {"gpus": 1}, "speculation": {}, "pods": pods}))
    assert template(first, second) == template(rest)
    second.write_text(yaml.safe_dump({"target": {"engine_args": {"seed": None}}}))
    assert "fp8" in template(first, second) and "seed" not in template(first, second)
    second.write_text(yaml.safe_dump({"target": {"model": None}}))
    with pytest.raises(ChartError, match=r"target\W+model"):
        template(first, second)
