"""Every key of every service can be set in a deployment file, and arrives in the service's process."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from flyserve.core.errors import ConfigError
from flyserve.core.messages import Role
from orchestration.deployment.file import (
    ControllerConfig,
    Deployment,
    DeploymentTelemetry,
    RolloutConfig,
    RouterTier,
)
from orchestration.deployment.plan import plan, router_config
from orchestration.deployment.tiers import (
    BuiltinDrafter,
    BuiltinTarget,
    LlamaCppDrafter,
    LlamaCppTarget,
    SuffixDrafter,
    SuffixSubDrafter,
    VllmDrafter,
    VllmTarget,
)
from router.config import RouterConfig
from services.common.config import Config, load_yaml, parse
from services.common.sections import Engines, engine_of, keys_of, sections_of
from services.common.telemetry.config import TelemetryConfig
from services.drafter.config import DRAFTERS, DrafterConfig, LlamaCppDrafterConfig, VllmDrafterConfig
from services.lookup.config import SuffixConfig
from services.target.config import TARGETS, LlamaCppTargetConfig, TargetConfig, VllmTargetConfig
from tests.support.config_values import at, nested, other_values
from tools.configuration_reference import OUTPUT
from tools.configuration_reference import rendered as page

KEYS = dict(other_values([Deployment]))
BASE = {
    "target.model": "/m/target",
    "drafter.model": "/m/drafter",
    "sub_drafter.engine": "suffix",
}
TLS = {f"security.tls.{name}": f"/c/{name}.pem" for name in ("certificate", "key", "ca")}
ORCHESTRATION = ("replicas", "gpus", "node_resource", "autoscaling")
"""Keys of a tier that are the controller's own."""

TIERS = {name: sections_of(Deployment.model_fields[name].annotation) for name in Role}
"""Sections of each tier, one for each engine."""

SECTIONS: dict[type[Config], type[Config]] = {
    BuiltinTarget: TargetConfig,
    VllmTarget: VllmTargetConfig,
    LlamaCppTarget: LlamaCppTargetConfig,
    BuiltinDrafter: DrafterConfig,
    VllmDrafter: VllmDrafterConfig,
    LlamaCppDrafter: LlamaCppDrafterConfig,
    SuffixDrafter: SuffixConfig,
    SuffixSubDrafter: SuffixConfig,
    RouterTier: RouterConfig,
    DeploymentTelemetry: TelemetryConfig,
}
"""Each section of the file, and the configuration of the process that it is for."""


def engine_with(tier: str, name: str) -> str:
    """Return the first engine of a tier that has a key."""
    return next(engine_of(section) for section in TIERS[Role(tier)] if name in section.model_fields)


def tier_on(tier: str, engine: str) -> dict[str, Any]:
    """Return the keys that put a tier on an engine, and the sub-drafter out of its way."""
    model = "model" in next(each for each in TIERS[Role(tier)] if engine_of(each) == engine).model_fields
    alone = {"sub_drafter.engine": "none"} if tier == "drafter" and engine != "builtin" else {}
    return {f"{tier}.engine": engine, **({} if model else {f"{tier}.model": None}), **alone}


def companions(key: str) -> dict[str, Any]:
    """Return the other keys that a key needs to be valid and to have an effect."""
    section, _, name = key.partition(".")
    if section == "security":
        return TLS
    if section in TIERS:
        needed = tier_on(
            section, "vllm" if key == "drafter.engine" else engine_with(section, name.split(".")[0])
        )
        return needed | ({f"{section}.autoscaling.max": 4} if name.startswith("autoscaling.") else {})
    return {}


def written(folder: Path, values: dict[str, Any]) -> Deployment:
    given = {key: value for key, value in values.items() if value is not None}
    (file := folder / "deployment.yaml").write_text(yaml.safe_dump(nested(given)), encoding="utf-8")
    return load_yaml(Deployment, file)


def processes(deployment: Deployment) -> dict[str, dict[str, Any]]:
    """The configuration of one process of each kind, as it is constructed, as plain data."""
    made: dict[str, Config] = {}
    for spec in plan(deployment, "here:1"):
        services: dict[Role, Engines[Any]] = {Role.TARGET: TARGETS, Role.DRAFTER: DRAFTERS}
        service = SuffixConfig if "services.lookup" in spec.actor else services[spec.role]
        made[spec.role.value] = parse(service, dict(spec.config), spec.replica)
    made["router"] = parse(RouterConfig, router_config(deployment, "here:1", 60.0, 5.0), "router")
    return {name: config.model_dump(mode="json") for name, config in made.items()}


def test_the_keys_are_many() -> None:
    assert len(KEYS) > 100
    assert {"router.limits.max_new_tokens", "target.max_batch_tokens", "drafter.max_queued"} <= KEYS.keys()


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_the_file_arrives_where_it_is_read(key: str, tmp_path: Path) -> None:
    base = {**BASE, **companions(key)}
    before = written(tmp_path, {**base, **TLS} if key.startswith("security.tls.") else base)
    after = written(tmp_path, {**base, key: KEYS[key]})
    value = at(after.model_dump(mode="json"), key)
    if key not in base:
        default = before.model_dump(mode="json")
        assert not _has(default, key) or at(default, key) != value
    section, _, name = key.partition(".")
    if section in ("name", "service_ports", "rollout", "controller") or name.startswith(ORCHESTRATION):
        return assert_the_controller_has_it(after, key, value)
    reader = section if section in ("target", "drafter", "sub_drafter") else "router"
    name = name if section in ("target", "drafter", "sub_drafter", "router") else key
    if key == "sub_drafter.engine":
        assert value == "none" and reader not in processes(after)
        return
    arrived = at(processes(after)[reader], name)
    assert arrived == value
    if key not in base:
        assert at(processes(before)[reader], name) != arrived


def _has(data: dict[str, Any], key: str) -> bool:
    try:
        at(data, key)
    except (KeyError, TypeError):
        return False
    return True


def assert_the_controller_has_it(deployment: Deployment, key: str, value: Any) -> None:
    """The controller reads the deployment itself; what it passes on is seen in the plan."""
    assert at(deployment.model_dump(mode="json"), key) == value
    section, _, name = key.partition(".")
    specs = [spec for spec in plan(deployment, "here:1") if spec.role.value == section]
    if name == "replicas":
        assert len(specs) == value
    elif name == "gpus":
        assert {spec.num_gpus for spec in specs} == {value}
    elif name == "node_resource":
        assert {spec.node_resource for spec in specs} == {value}
    elif key == "service_ports":
        assert {spec.hints["ports"] for spec in plan(deployment, "here:1")} == {value}
    elif section in ("rollout", "controller"):
        assert name in (RolloutConfig if section == "rollout" else ControllerConfig).model_fields


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_key_of_a_process_is_a_key_of_the_file_or_has_a_reason(section: type[Config]) -> None:
    assert SECTIONS[section].model_fields.keys() - section.model_fields.keys() <= section.reserved.keys()
    assert not section.reserved.keys() & section.model_fields.keys()
    assert all(len(reason) > 15 for reason in section.reserved.values())


PLACES = {
    **{tier.value: TIERS[tier][0] for tier in Role},
    "router": RouterTier,
    "telemetry": DeploymentTelemetry,
}


@pytest.mark.parametrize(
    ("place", "key"), [(place, key) for place, section in PLACES.items() for key in section.reserved]
)
def test_a_key_that_is_not_the_file_s_is_rejected_with_the_reason(place: str, key: str) -> None:
    reason = PLACES[place].reserved[key]
    with pytest.raises(ConfigError) as error:
        parse(Deployment, nested({**BASE, f"{place}.{key}": "x"}), "test")
    assert f"{place}.{key}: cannot be set here: {reason}" in str(error.value)


@pytest.mark.parametrize(
    ("tier", "engine", "key"),
    [
        (tier, engine_of(section), key)
        for tier, union in TIERS.items()
        for section in union
        for key in sorted(keys_of(union).keys() - section.model_fields.keys())
    ],
)
def test_a_key_of_another_engine_is_an_error_that_names_both(tier: Role, engine: str, key: str) -> None:
    values = {**BASE, **tier_on(tier, engine), f"{tier}.{key}": KEYS[f"{tier}.{key}"]}
    with pytest.raises(ConfigError) as error:
        parse(
            Deployment, nested({name: value for name, value in values.items() if value is not None}), "test"
        )
    having = ", ".join(engine_of(each) for each in TIERS[tier] if key in each.model_fields)
    assert f"{tier}.{key}: engine {engine} has no such key, only {having}: leave it out" in str(error.value)
    assert "; " not in str(error.value)


def test_tiers_get_telemetry_and_security_too(tmp_path: Path) -> None:
    values = {**BASE, **TLS, **{key: KEYS[key] for key in KEYS if key.startswith("telemetry.")}}
    made = processes(written(tmp_path, values))
    for name in ("otlp_endpoint", "trace_ratio", "log_format"):
        arrived = {process["telemetry"][name] for process in made.values()}
        assert arrived == {KEYS[f"telemetry.{name}"]}
    assert {process["security"]["tls"]["ca"] for process in made.values()} == {"/c/ca.pem"}


def test_the_page_of_all_keys_is_up_to_date() -> None:
    assert OUTPUT.read_text(encoding="utf-8") == page(), "run `make generate`"


def test_drafts_by_default_keep_the_router_s_limit() -> None:
    values = {**BASE, "router.limits.draft_length": 8}
    with pytest.raises(ConfigError, match=r"draft_length\.max is 15, at most router\.limits\.draft_length"):
        parse(Deployment, nested(values), "test")
