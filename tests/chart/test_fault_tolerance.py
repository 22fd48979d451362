"""Where Ray keeps its state, so that workers outlive the head."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.chart.charts import one, rendered, shown_notes
from tests.chart.test_examples import OWN_SCHEMA

STORES: dict[str, tuple[Any, Any]] = {
    "none": ({}, None),
    "Redis without a password": ({"redisAddress": "redis:6379"}, {"redisAddress": "redis:6379"}),
    "a URI": (
        {"redisAddress": "redis://redis.databases:6379", "passwordSecret": {"name": "p"}},
        {"redisAddress": "redis://redis.databases:6379", "redisPassword": ("p", "password")},
    ),
    "TLS and a user": (
        {
            "redisAddress": "rediss://redis:6380",
            "usernameSecret": {"name": "u", "key": "user"},
            "passwordSecret": {"name": "p", "key": "word"},
        },
        {
            "redisAddress": "rediss://redis:6380",
            "redisUsername": ("u", "user"),
            "redisPassword": ("p", "word"),
        },
    ),
    "RocksDB": ({"rocksdb": {"enabled": True}}, {"backend": "rocksdb"}),
    "RocksDB on a volume of this size": (
        {"rocksdb": {"enabled": True, "size": "5Gi", "storageClass": "fast"}},
        {"backend": "rocksdb", "storage": {"size": "5Gi", "storageClassName": "fast"}},
    ),
}


@pytest.mark.parametrize("case", STORES)
def test_ray_keeps_its_state_where_the_values_say(case: str, tmp_path: Path) -> None:
    values, expected = STORES[case]
    cluster = one(rendered(tmp_path, {"ray": {"gcsFaultTolerance": values}}), "RayCluster")
    jsonschema.validate(cluster, OWN_SCHEMA)
    found = cluster["spec"].get("gcsFaultToleranceOptions")
    if expected and "redisAddress" in expected:
        expected = {"externalStorageNamespace": "serving-demo-flyserve-blue", **expected}
        for key in expected.keys() & {"redisUsername", "redisPassword"}:
            name, field = expected[key]
            expected[key] = {"valueFrom": {"secretKeyRef": {"name": name, "key": field}}}
    assert json.dumps(found, sort_keys=True) == json.dumps(expected, sort_keys=True)


def test_the_notes_name_the_switch_of_kuberay_that_rocksdb_needs(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps({"ray": {"gcsFaultTolerance": {"rocksdb": {"enabled": True}}}}))
    switch = "--feature-gates=GCSFaultToleranceEmbeddedStorage=true"
    assert switch in shown_notes(tmp_path, file) and switch not in shown_notes(tmp_path)
