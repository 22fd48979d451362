"""Values of the chart: merged as helm merges them, their difference, the steps of an upgrade (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Values = dict[str, Any]

_OF_CLUSTERS = (
    "image",
    "target",
    "drafter",
    "sub_drafter",
    "models",
    "pods",
    "podSecurityContext",
    "securityContext",
    "ray",
)
"""Keys that ray.standby.values takes."""
_OF_RAY = ("version", "autoscaling", "authSecret", "gcsFaultTolerance")
"""Keys of `ray` that can differ between two clusters."""
_OPEN = ("requests", "limits", "podSecurityContext", "securityContext")
"""Mappings of Kubernetes' own keys, which every chart takes."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Values of the three steps that move a release to a second cluster, and the names of both clusters."""

    old: str
    new: str
    beside: Values
    """Start the new cluster; routers stay at the old one."""
    swapped: Values
    """Move the routers to the new cluster; the old one still runs."""
    alone: Values
    """Remove the old cluster."""


def layered(first: Mapping[str, Any], second: Mapping[str, Any]) -> Values:
    """Return the content of two values files: mappings merge, lists are replaced, nulls stay."""
    made = dict(first)
    for key, value in second.items():
        under = made.get(key)
        is_deep = isinstance(under, Mapping) and isinstance(value, Mapping)
        made[key] = layered(under, value) if is_deep else value  # type: ignore[arg-type]
    return made


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Values:
    """Return the values of a chart, `base`, with those of its user: as `layered`, and null removes a key."""
    return without_nulls(layered(base, over))


def without_nulls(values: Mapping[str, Any]) -> Values:
    """Return the values without the keys that are null, which a chart does not have."""
    return {
        key: without_nulls(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }


def as_installed(defaults: Values, installed: Values, own: Values) -> Values:
    """Return the values of an installed release in the keys of another chart.

    A key that only the other chart has is as there. A key that it lacks, and a key that is removed, come from
    the release's user alone.

    Args:
        defaults: Values of the other chart by itself.
        installed: All values of the release.
        own: Those that its user gave.
    """
    made: Values = {}
    for key in defaults | own:
        default, value = defaults.get(key), installed.get(key)
        if key not in defaults or key not in installed:
            made[key] = own.get(key, default)
        elif isinstance(default, dict) and isinstance(value, dict) and key not in _OPEN:
            made[key] = as_installed(default, value, own.get(key) or {})
        else:
            made[key] = value
    return without_nulls(made)


def difference(base: Mapping[str, Any], wanted: Mapping[str, Any]) -> Values:
    """Return the smallest values that, merged over `base`, give `wanted`, which has no nulls."""
    found: Values = {key: None for key in base if key not in wanted}
    for key, value in wanted.items():
        under = base.get(key)
        if isinstance(under, Mapping) and isinstance(value, Mapping):
            if more := difference(under, value):
                found[key] = more
        elif key not in base or under != value:
            found[key] = value
    return found


def with_tag(values: Values, app_version: str) -> Values:
    """Return the values with the tag that an empty one means: the version of the chart's application."""
    image = values.get("image") or {}
    return (
        values if image.get("tag") or image.get("digest") else merged(values, {"image": {"tag": app_version}})
    )


def with_active(values: Mapping[str, Any], color: str) -> Values:
    """Return values with this Ray cluster alone."""
    ray = {key: value for key, value in (values.get("ray") or {}).items() if key != "standby"}
    return {**values, "ray": {**ray, "active": color}}


def plan(before: Values, after: Values, own: Values, defaults: Values) -> Steps:
    """Plan the move from one cluster to another.

    Args:
        before: All values of the installed release, with the image's tag.
        after: All values that it shall have, with the image's tag.
        own: Those of `after` that the chart does not have by itself, to stay with the release.
        defaults: Those that the chart has by itself.
    """
    old = before["ray"]["active"]
    new = "blue" if old == "green" else "green"
    return Steps(
        old=old,
        new=new,
        beside=difference(defaults, _with_standby(with_active(before, old), new, _overlay(before, after))),
        swapped=difference(defaults, _with_standby(with_active(after, new), old, _overlay(after, before))),
        alone=with_active(own, new),
    )


def _overlay(base: Values, wanted: Values) -> Values:
    def of_clusters(values: Values) -> Values:
        made = {key: values[key] for key in _OF_CLUSTERS if key in values}
        return {**made, "ray": {key: made["ray"][key] for key in _OF_RAY if key in made["ray"]}}

    return difference(of_clusters(base), of_clusters(wanted))


def _with_standby(values: Values, color: str, overlay: Values) -> Values:
    standby = {"name": color, "image": {}, "values": overlay}
    return {**values, "ray": {**values["ray"], "standby": standby}}
