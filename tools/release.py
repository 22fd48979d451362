"""Builds and checks the parts of a release, of one version, and uploads nothing: `make release` runs it."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from flyserve.core.version import VERSION
from tools import wheels

CHART = wheels.ROOT / "helm" / "flyserve"


def main() -> None:
    """Write wheels and chart to `dist/`, build the images, and print what there is."""
    if faults := list(find_faults()):
        sys.exit("\n".join(f"error: {fault}" for fault in faults))
    wheels.main()
    helm = shutil.which("helm") or str(Path(sys.executable).with_name("helm"))
    subprocess.run([helm, "lint", "--strict", CHART], check=True)
    subprocess.run([helm, "package", CHART, "--destination", wheels.OUTPUT], check=True)
    subprocess.run([wheels.ROOT / "tools" / "images.sh"], check=True)
    for path in sorted(wheels.OUTPUT.glob(f"flyserve*{VERSION}*")):
        print(hashlib.sha256(path.read_bytes()).hexdigest(), path.name)


def find_faults(root: Path = wheels.ROOT) -> list[str]:
    """Return what forbids a release: uncommitted changes, another version somewhere, no entry of changes."""
    git = ["git", "status", "--porcelain"]
    changed = subprocess.run(git, cwd=root, check=True, capture_output=True, text=True).stdout
    chart = yaml.safe_load((root / "helm" / "flyserve" / "Chart.yaml").read_text(encoding="utf-8"))
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    faults = ["there are changes that are not committed"] if changed else []
    for key in ("version", "appVersion"):
        if chart[key] != VERSION:
            faults.append(f"{key} of the chart is {chart[key]}, must be {VERSION} (flyserve/core/version.py)")
    if f"\n## {VERSION}" not in changes:
        faults.append(f"CHANGELOG.md has no part {VERSION}")
    return faults


if __name__ == "__main__":
    main()
