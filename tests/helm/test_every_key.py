"""Every key of the deployment file is a value of the chart, or the chart says why not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from orchestration.deployment.file import Deployment
from services.common.config import parse
from tests.helm.charts import one, rendered
from tools import chart_schema as schema

VALUES: dict[str, Any] = {
    "target": {
        "model": "demo/models/other",
        "autoscaling": {
            "min": 2,
            "max": 5,
            "target_load": 0.6,
            "tolerance": 0.2,
            "upscale_delay_s": 9.0,
            "downscale_delay_s": 90.0,
        },
        "replicas": 3,
        "dtype": "float32",
        "max_sequences": 7,
        "kv_tokens": 7000,
        "threads": 3,
        "gpus": 1.0,
        "shards": 2,
        "group_timeout_s": 33.0,
        "group_start_timeout_s": 44.0,
    },
    "drafter": {
        "model": "demo/models/another",
        "autoscaling": {
            "min": 1,
            "max": 4,
            "target_load": 0.5,
            "tolerance": 0.3,
            "upscale_delay_s": 8.0,
            "downscale_delay_s": 80.0,
        },
        "replicas": 2,
        "dtype": "float32",
        "max_sequences": 6,
        "kv_tokens": 6000,
        "threads": 2,
        "gpus": 0.5,
        "draft_ahead": "on",
    },
    "sub_drafter": {
        "engine": "model",
        "replicas": 2,
        "response_cache_tokens": 5000,
        "model": "demo/models/third",
        "dtype": "float32",
        "threads": 4,
        "gpus": 1.0,
    },
    "router": {
        "grpc_port": 6001,
        "http_port": 6002,
        "model_name": "served",
        "chat_template": "demo/template.jinja",
        "cors_origins": ["https://example.com"],
        "balancing": "power_of_two",
        "max_concurrent": 11,
        "max_queued": 12,
    },
    "speculation": {
        "mode": "exact",
        "preset": "vllm",
        "draft_length": {"policy": "goodput", "max": 9},
        "sub_drafter": False,
        "window": 5,
        "threshold": 0.4,
        "tail": "reject",
        "carry_after": 3,
        "guard_stops": False,
        "guard_excluded": False,
        "strict_prefix_tokens": 4,
        "entropy": "normalized",
    },
    "telemetry": {
        "metrics_port": 9500,
        "otlp_endpoint": "http://collector:4317",
        "trace_ratio": 0.5,
        "log_format": "json",
    },
    "rollout": {"surge": 2, "drain_s": 77.0},
    "security": {"tls": {"client_certificates": True}, "auth_tokens_file": "keys.yaml", "health_port": 6003},
}
"""Each key with another value than it has by itself."""

REST = {
    "secrets": {
        "tls": dict.fromkeys(("router", "controller", "target", "drafter", "sub_drafter"), "certificate"),
        "authTokens": "keys",
    },
    "pods": {"target": {"gpus": 2}, "drafter": {"gpus": 1}, "sub_drafter": {"gpus": 1}},
}
"""Without which the chart would reject them."""


def keys(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted names of a section's keys, sections in it by their keys."""
    for name, field in section.model_fields.items():
        options = (field.annotation, *getattr(field.annotation, "__args__", ()))
        inner = [o for o in options if isinstance(o, type) and issubclass(o, BaseModel)]
        if inner and f"{prefix}{name}" not in schema.SETTLED:
            yield from keys(inner[0], f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def test_every_key_is_tried_here_or_is_listed_with_a_reason() -> None:
    tried = {key for key, _ in leaves(VALUES)}
    assert tried | schema.SETTLED.keys() == set(keys(Deployment))
    assert not tried & schema.SETTLED.keys()
    assert all(len(reason) > 15 for reason in schema.SETTLED.values())


def test_every_value_arrives_in_the_deployment_file(tmp_path: Path) -> None:
    text = one(rendered(tmp_path, VALUES | REST), "ConfigMap", "-config")["data"]["deployment-blue.yaml"]
    arrived = dict(leaves(parse(Deployment, yaml.safe_load(text), "rendered").model_dump(mode="json")))
    expected = dict(leaves(VALUES)) | {
        # The file of the Secret, where it is mounted.
        "security.auth_tokens_file": "/etc/flyserve-secrets/api-keys/keys.yaml",
    }
    assert {key: arrived[key] for key in expected} == expected
    plain = {"target": {"model": "m"}, "drafter": {"model": "m"}, "sub_drafter": {}}
    defaults = dict(leaves(parse(Deployment, plain, "defaults").model_dump(mode="json")))
    assert [key for key, value in expected.items() if defaults.get(key) == value] == []
