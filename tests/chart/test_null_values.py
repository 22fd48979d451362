"""Null in place of a value of the chart: it removes what is optional; elsewhere it is refused by the key."""

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from jsonschema import Draft7Validator

from tests.chart.charts import rendered
from tests.chart.test_schema import SCHEMA, VALUES, paths
from tests.support.config_values import nested
from tools.chart import RAY_API, ChartError

VALIDATOR = Draft7Validator(SCHEMA)


def complaints(key: str) -> list[str]:
    """Faults that the schema finds in the values of the chart without a key: helm removes a null one."""
    *sections, name = key.split(".")
    values = copy.deepcopy(VALUES)
    place = values
    for section in sections:
        place = place[section]
    del place[name]
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in VALIDATOR.iter_errors(values)]


def value(key: str) -> Any:
    found: Any = VALUES
    for part in key.split("."):
        found = found[part]
    return found


REFUSED = {key: said for key in paths(VALUES) if (said := complaints(key))}
KUBERNETES = ("podSecurityContext.seccompProfile.type",)
"""A key of Kubernetes' own, which needs it where its section is; the chart accepts any."""
REMOVED = [key for key in paths(VALUES) if key not in (*REFUSED, *KUBERNETES)]
TIERS = ("drafter", "sub_drafter")
"""Their null is a deployment without them."""
FILLED = [key for key in REMOVED if key not in TIERS and value(key) not in (None, "", [], {})]


def outermost(keys: Iterable[str]) -> list[str]:
    known = set(keys)
    return [key for key in keys if not known & {key[:end] for end, char in enumerate(key) if char == "."}]


def innermost(keys: Iterable[str]) -> list[str]:
    return [key for key in keys if not any(other.startswith(f"{key}.") for other in keys)]


def test_the_null_of_a_key_that_the_chart_needs_is_refused_by_name() -> None:
    for key, said in REFUSED.items():
        section, _, name = key.rpartition(".")
        assert said == [f"{section}: '{name}' is a required property"]
    assert len(REFUSED) > 90
    for key in ("ray.active", "pods.router.replicas", "apply.timeoutSeconds", "networkPolicy.enabled"):
        assert key in REFUSED
    assert {"router", "ingress", "gateway", "pods.router.autoscaling", "pods.router.keda"} <= REFUSED.keys()


@pytest.mark.parametrize("key", ["router", "pods.router.replicas", "pods.router.keda", "target.model"])
def test_helm_names_such_a_key(key: str, tmp_path: Path) -> None:
    with pytest.raises(ChartError, match=key.replace(".", r"\W+")) as refusal:
        rendered(tmp_path, nested({key: None}))
    assert "nil pointer" not in str(refusal.value)


@pytest.mark.parametrize("key", ["pods.router", "pods.head.tmpSize", "image.repository", "target"])
def test_the_values_of_a_second_cluster_take_no_null_there_either(key: str, tmp_path: Path) -> None:
    values = {"ray.standby.name": "green", f"ray.standby.values.{key}": None}
    with pytest.raises(ChartError, match=rf"values\.{key}.* null"):
        rendered(tmp_path, nested(values))


def test_the_null_of_an_empty_key_changes_nothing(tmp_path: Path) -> None:
    empty = [key for key in REMOVED if key not in (*FILLED, *TIERS)]
    assert len(empty) > 50
    assert rendered(tmp_path, nested(dict.fromkeys(empty))) == rendered(tmp_path)


@pytest.mark.parametrize("chosen", [outermost, innermost])
def test_the_nulls_of_all_other_keys_make_valid_objects(chosen: Any, tmp_path: Path) -> None:
    manifests = rendered(tmp_path, nested(dict.fromkeys(chosen(FILLED))))
    assert "nil" not in str(manifests)
    for manifest in manifests:
        if manifest["apiVersion"] != RAY_API:
            kubernetes_validate.validate(manifest, "1.34", strict=True)


def test_the_null_of_a_digest_leaves_the_tag(tmp_path: Path) -> None:
    """In `image`, of a role and of a second cluster."""
    nulls: dict[str, Any] = {"image.digest": None, "pods.target.image.digest": None}
    standby = {"ray.standby.name": "green", "ray.standby.values": nested(nulls)}
    images = str(rendered(tmp_path, nested(nulls | {"ray.standby.name": "green"})))
    assert images == str(rendered(tmp_path, nested(standby))) and "flyserve@" not in images
