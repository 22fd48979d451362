"""Differences between a running deployment and a new file, key by key, and their effects."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from flyserve.core.errors import ConfigError
from flyserve.core.messages import Role
from orchestration.deployment.file import Deployment
from services.common.sections import ENGINE
from services.common.token_map import token_map_hash

_ROUTER_KEYS = ("security.auth_tokens_file", "security.health_port", "security.tls.client_certificates")


class Effect(StrEnum):
    """Effect of a change."""

    STARTS = "starts the tier"
    ENDS = "drains and ends the tier"
    SCALES = "scales the tier"
    REPLACES = "replaces the tier's replicas, one by one"
    REPLACES_ALL = "replaces all replicas, one by one, and applies to routers that are started from now on"
    AT_ONCE = "applies at once"
    ROUTERS = "applies to routers that are started from now on"
    IMPOSSIBLE = "cannot be changed while the deployment runs"


@dataclass(frozen=True, slots=True)
class Change:
    """Change of one key.

    Attributes:
        key: Dotted name, as in the deployment file.
    """

    key: str
    before: Any
    after: Any
    effect: Effect

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.before)} -> {_shown(self.after)} ({self.effect})"


@dataclass(frozen=True, slots=True)
class Report:
    """Result of applying a deployment file.

    Attributes:
        is_new: No deployment of this name ran before.
    """

    is_new: bool
    changes: tuple[Change, ...] = ()


def changes(before: Deployment, after: Deployment) -> tuple[Change, ...]:
    """Return every key that differs."""
    return tuple(_differences("", before.model_dump(mode="json"), after.model_dump(mode="json")))


def require_possible(found: tuple[Change, ...]) -> None:
    """Raise ConfigError if a change cannot be made in place."""
    impossible = [change for change in found if change.effect is Effect.IMPOSSIBLE]
    if impossible:
        keys = "; ".join(map(str, impossible))
        raise ConfigError(
            f"{keys}: end it first with flyserve down, or apply this under another name (key name)"
        )


def _differences(prefix: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    # NOTE: both, because a mapping such as engine_args may have lost a key. Another engine has other keys.
    is_same = before.get(ENGINE) == after.get(ENGINE)
    names = {**before, **after} if is_same else [name for name in before if name in after]
    for name in names:
        key, old, new = f"{prefix}{name}", before.get(name), after.get(name)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(f"{key}.", old, new)
        else:
            yield Change(key, old, new, _effect(key, old, new))


def _effect(key: str, old: Any, new: Any) -> Effect:
    section, _, rest = key.partition(".")
    if section in set(Role):
        if not rest:
            return Effect.STARTS if old is None else Effect.ENDS
        if rest.partition(".")[0] == "autoscaling":
            return Effect.AT_ONCE
        return Effect.SCALES if rest == "replicas" else Effect.REPLACES
    if section in ("router", "speculation") or key in _ROUTER_KEYS:
        return Effect.ROUTERS
    if section == "telemetry":
        return Effect.REPLACES_ALL
    return Effect.AT_ONCE if section == "rollout" else Effect.IMPOSSIBLE


def _shown(value: Any) -> str:
    return "none" if value is None else "..." if isinstance(value, dict) else str(value)


def require_same_tokens(before: Deployment, after: Deployment) -> None:
    """Reject a target whose token map differs from that of the running routers.

    Only folders that can be read here are compared; a router asks every target itself when it starts.

    Raises:
        ConfigError: The maps differ.
        ModelError: A map cannot be read.
    """
    old, new = before.target.model, after.target.model
    if old == new or not (old.is_dir() and new.is_dir()):
        return
    if (known := token_map_hash(old)) and (other := token_map_hash(new)) and known != other:
        raise ConfigError(
            f"target.model: {new} maps tokens to other ids than {old}, which the running routers use: end"
            " the deployment first with flyserve down, or apply this under another name (key name)"
        )
