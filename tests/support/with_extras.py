"""Run a module as if only some extras were installed.

Such as `python -m tests.support.with_extras cli,router router --help`.
"""

import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from importlib.metadata import packages_distributions
from types import ModuleType
from typing import Any

from packaging.utils import canonicalize_name

from tests.support.requirements import needed


class InstalledOnly:
    """An import finder that hides the top-level packages of all other distributions."""

    find_distributions = staticmethod(PathFinder.find_distributions)

    def __init__(self, distributions: set[str]) -> None:
        self._hidden = {
            package
            for package, owners in packages_distributions().items()
            if not distributions & {canonicalize_name(owner) for owner in owners}
        }

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if name.partition(".")[0] in self._hidden else PathFinder.find_spec(name, path, target)


def main(extras: str, module: str, *flags: str) -> None:
    """Run `module` with these flags, with no package imported before."""
    finder: Any = InstalledOnly({"flyserve", *needed([f"flyserve[{extras}]"])})
    sys.meta_path[:] = [BuiltinImporter, FrozenImporter, finder]
    for name in [name for name in sys.modules if name.partition(".")[0] == "packaging"]:
        del sys.modules[name]
    sys.argv = [module, *flags]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
