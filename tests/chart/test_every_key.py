"""Every key of the deployment file is a value of the chart, or the chart says why not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import tools.chart
from flyserve.core.messages import Role
from orchestration.deployment.file import Deployment
from services.common.config import parse
from services.common.sections import engine_of, sections_of
from tests.chart.charts import one, rendered
from tests.support.config_values import nested, other_values
from tools import chart_schema as schema

TOGETHER = {
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
VALUES = dict(other_values([Deployment]))
TRIED = {key: value for key, value in VALUES.items() if not is_settled(key) and key not in OF_CPUS} | TOGETHER
"""Each key with another value than it has by itself."""
TIERS = {tier: sections_of(Deployment.model_fields[tier].annotation) for tier in Role}
ENGINES = [
    {Role.TARGET: "builtin", Role.DRAFTER: "builtin", Role.SUB_DRAFTER: "suffix"},
    {Role.TARGET: "vllm", Role.DRAFTER: "builtin"},
    {Role.TARGET: "vllm", Role.DRAFTER: "vllm"},
    {Role.TARGET: "builtin", Role.DRAFTER: "suffix"},
]
"""Engines of the tiers, all of them in some deployment."""
CHART: dict[str, Any] = dict(leaves(yaml.safe_load((tools.chart.CHART / "values.yaml").read_text())))


def has(engines: dict[Role, str], key: str) -> bool:
    """Return True if a deployment on these engines has a key."""
    tier, _, rest = key.partition(".")
    if tier not in TIERS:
        return True
    section = next((each for each in TIERS[Role(tier)] if engine_of(each) == engines.get(Role(tier))), None)
    return section is not None and rest.split(".")[0] in section.model_fields


def test_every_settled_key_is_one_and_has_a_reason() -> None:
    known = VALUES.keys()
    assert TRIED.keys() <= known and len(TRIED) > 90
    for settled, reason in schema.SETTLED.items():
        assert any(key == settled or key.startswith(f"{settled}.") for key in known), settled
        assert len(reason) > 15


@pytest.mark.parametrize("engines", ENGINES, ids=lambda engines: "-".join(engines.values()))
def test_every_value_arrives_in_the_deployment_file(engines: dict[Role, str], tmp_path: Path) -> None:
    tried = {key: value for key, value in TRIED.items() if has(engines, key)}
    tried |= {f"{tier}.engine": engine for tier, engine in engines.items()}
    # Null removes a value of the chart's own that another engine has.
    unset = nested(tried | {key: None for key in CHART if not has(engines, key)})
    if Role.SUB_DRAFTER not in engines:
        unset["sub_drafter"] = None
    gpus = {"target": {"gpus": 2}, "drafter": {"gpus": int(has(engines, "drafter.gpus"))}}
    text = one(rendered(tmp_path, unset | REST | {"pods": gpus}), "ConfigMap", "-config")["data"]
    served = yaml.safe_load(text["deployment-blue.yaml"])
    arrived = dict(leaves(parse(Deployment, served, "rendered").model_dump(mode="json")))
    expected = dict(leaves(nested(tried))) | {
        # The file of the Secret, where it is mounted.
        "security.auth_tokens_file": "/etc/flyserve-secrets/api-keys/keys.yaml",
    }
    assert {key: arrived[key] for key in expected} == expected


def test_weights_in_eight_bits_arrive_in_the_deployment_file(tmp_path: Path) -> None:
    values = nested(dict.fromkeys(OF_CPUS, "int8"))
    text = one(rendered(tmp_path, values), "ConfigMap", "-config")["data"]["deployment-blue.yaml"]
    arrived = dict(leaves(yaml.safe_load(text)))
    assert {arrived[key] for key in OF_CPUS} == {"int8"}
