"""Every package that an installation brings is pinned: nothing new comes in by itself."""

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]


def needed(requirements: Iterable[str]) -> set[str]:
    """The names of what these requirements bring, and what that brings, on this machine."""
    found: set[str] = set()
    open_ends = [Requirement(text) for text in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    while open_ends:
        requirement = open_ends.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found.add(name)
        try:
            of_its_own = [Requirement(text) for text in requires(name) or ()]
        except PackageNotFoundError:
            continue
        environments = [{"extra": extra} for extra in ("", *extras)]
        open_ends += [r for r in of_its_own if r.marker is None or any(map(r.marker.evaluate, environments))]
    return found


def test_the_constraints_pin_all_that_an_installation_brings() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    pinned = {
        canonicalize_name(name)
        for name in re.findall(r"^([\w.-]+)==\S+$", (ROOT / "constraints.txt").read_text("utf-8"), re.M)
    }
    assert needed(asked) - pinned == set()
