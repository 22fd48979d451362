"""Every key of the deployment file is a value of the chart, or the chart says why not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestration.deployment.file import Deployment
from services.common.config import parse
from tests.chart.charts import one, rendered
from tests.support.config_values import nested, other_values
from tools import chart_schema as schema

TOGETHER = {
    "sub_drafter.engine": "model",
    "telemetry.metrics_port": 9500,
    "router.http_port": 6002,
    "security.health_port": 6003,
}
"""Values that suit the others: what is made of the type alone would not."""

REST = {
    "secrets": {
        "tls": dict.fromkeys(("router", "controller", "target", "drafter", "sub_drafter"), "certificate"),
        "authTokens": "keys",
    },
    "pods": {"target": {"gpus": 2}, "drafter": {"gpus": 1}, "sub_drafter": {"gpus": 1}},
}
"""Without which the chart would reject them."""


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def is_settled(key: str) -> bool:
    """The chart settles a key, or the section that it is in."""
    return any(key == settled or key.startswith(f"{settled}.") for settled in schema.SETTLED)


OF_CPUS = {"target.quantization", "drafter.quantization"}
"""Keys that tiers with GPUs cannot have."""
TRIED = {key: value for key, value in other_values(Deployment) if not is_settled(key) and key not in OF_CPUS}
TRIED |= TOGETHER
"""Each key with another value than it has by itself."""
OF_VLLM = {f"{tier}.{name}" for tier in ("target", "drafter") for name in ("engine", "engine_args")}
SUB_DRAFTER = {key for key in TRIED if key.startswith("sub_drafter.")}
OF_CHART = {"target.kv_tokens", "drafter.kv_tokens"}
OF_BUILTIN = OF_CHART | {"drafter.vocabulary"} | SUB_DRAFTER


def test_every_settled_key_is_one_and_has_a_reason() -> None:
    known = {key for key, _ in other_values(Deployment)}
    assert TRIED.keys() <= known and len(TRIED) > 90
    for settled, reason in schema.SETTLED.items():
        assert any(key == settled or key.startswith(f"{settled}.") for key in known), settled
        assert len(reason) > 15


@pytest.mark.parametrize("absent", [OF_VLLM, OF_BUILTIN], ids=["builtin", "vllm"])
def test_every_value_arrives_in_the_deployment_file(absent: set[str], tmp_path: Path) -> None:
    tried = {key: value for key, value in TRIED.items() if key not in absent}
    # The chart's own values have those of the builtin engine: null removes them.
    unset = nested(tried | dict.fromkeys(absent & OF_CHART))
    if absent >= SUB_DRAFTER:
        unset["sub_drafter"] = None
    text = one(rendered(tmp_path, unset | REST), "ConfigMap", "-config")["data"]["deployment-blue.yaml"]
    arrived = dict(leaves(parse(Deployment, yaml.safe_load(text), "rendered").model_dump(mode="json")))
    expected = dict(leaves(nested(tried))) | {
        # The file of the Secret, where it is mounted.
        "security.auth_tokens_file": "/etc/flyserve-secrets/api-keys/keys.yaml",
    }
    assert {key: arrived[key] for key in expected} == expected
    plain = {"target": {"model": "m"}, "drafter": {"model": "m"}, "sub_drafter": {}}
    defaults = dict(leaves(parse(Deployment, plain, "defaults").model_dump(mode="json")))
    assert [key for key, value in expected.items() if defaults.get(key) == value] == []


def test_weights_in_eight_bits_arrive_in_the_deployment_file(tmp_path: Path) -> None:
    values = nested(dict.fromkeys(OF_CPUS, "int8"))
    text = one(rendered(tmp_path, values), "ConfigMap", "-config")["data"]["deployment-blue.yaml"]
    arrived = dict(leaves(yaml.safe_load(text)))
    assert {arrived[key] for key in OF_CPUS} == {"int8"}
