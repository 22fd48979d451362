"""The server application beside the client: where its packages are, and that no other ones stand for them."""

import importlib.util
import os
import sys
from pathlib import Path

from flyserve.core.errors import ConfigError
from flyserve.core.version import VERSION

DISTRIBUTION = "flyserve-server"
"""Name under which people install the application."""
PACKAGES = ("services", "router", "orchestration", "demo", "benchmarks", "tools")
"""Top-level packages of the application."""
_FOLDER = "flyserve_server"
"""The one name of the installed application; its folder has the packages."""
_MISSING = f"this command needs the server: pip install {DISTRIBUTION}=={VERSION}"
_MARK = Path("orchestration", "deployment", "plan.py")


def use_server() -> None:
    """Let this process and its children import the application, whatever the working folder has.

    Nothing happens where the client is installed alone: `missing_server` says so where it is needed.

    Raises:
        ConfigError: The application has another version than the client, or packages of the same names have
            been imported from elsewhere.
    """
    if (root := find_server()) is None:
        return
    for name in PACKAGES:
        found = getattr(sys.modules.get(name), "__file__", None)
        if found is not None and not Path(found).is_relative_to(root):
            raise ConfigError(
                f"the package {name} of {found} stands for that of FlyServe in {root}: rename it"
            )
    if sys.path[:1] != [str(root)]:
        sys.path.insert(0, str(root))
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(root), *filter(None, paths)]))
    # Children do not look into the working folder first, as `python -m` does otherwise.
    os.environ["PYTHONSAFEPATH"] = "1"


def demo_file() -> Path:
    """Return the deployment file of the demo; raise ConfigError if the application is not installed."""
    if (root := find_server()) is None:
        raise ConfigError(_MISSING)
    return root / "demo" / "deployment.yaml"


def missing_server(error: ModuleNotFoundError) -> str | None:
    """Return what to install where a package of the application is missing; None if another one is."""
    if (error.name or "").partition(".")[0] not in PACKAGES:
        return None
    return _MISSING


def find_server() -> Path | None:
    """Return the folder of the application: the clone that this file is part of, or the installed one.

    Raises:
        ConfigError: The application has another version than the client.
    """
    clone = Path(__file__).resolve().parents[1]
    if (clone / _MARK).is_file():
        return clone
    spec = importlib.util.find_spec(_FOLDER)
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    found = (root / "VERSION").read_text(encoding="utf-8").strip()
    if found != VERSION:
        raise ConfigError(
            f"flyserve is version {VERSION}, {DISTRIBUTION} is version {found}: install one version of both,"
            f" as in pip install flyserve=={VERSION} {DISTRIBUTION}=={VERSION}"
        )
    return root
