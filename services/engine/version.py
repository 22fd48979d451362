"""FlyServe's version."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def flyserve_version() -> str:
    """As installed; the source tree's own where it runs uninstalled."""
    try:
        return version("flyserve")
    except PackageNotFoundError:
        return "0.1.0"
