"""Rendered charts as tests ask for them."""

import shutil
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from orchestration.deployment.file import Deployment
from router.security.keys import issue_key
from services.common.config import load_yaml
from tests.support.certificates import Authority
from tests.support.kubernetes_api import kubernetes_api
from tests.support.secret_mounts import MountedSecrets, certificate_files
from tools.chart import CHART, NAMESPACE, template
from tools.chart_goldens import EXAMPLES

CPU_DEMO, SECURED = (next(e for e in EXAMPLES if e.stem == name) for name in ("cpu-demo", "secured"))

SECRETS = "/etc/flyserve-secrets"
"""Folder of the Secrets in a pod."""
CERTIFIED = ("router", "controller", "target", "drafter", "sub-drafter")

Manifest = dict[str, Any]


def rendered(folder: Path, values: Any = None, *files: Path, **options: Any) -> list[Manifest]:
    """The objects that these values make, over those of the files."""
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    return objects(_text(yaml.safe_dump(values or {}), files, **given))


@cache
def _text(values: str, files: tuple[Path, ...], **options: Any) -> str:
    """The same for the text of a values file; helm takes a second, and many tests ask for the same."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "values.yaml")
        path.write_text(values, encoding="utf-8")
        return template(*files, path, **options)


def upgraded(
    folder: Path,
    live: Sequence[Manifest],
    values: Any = None,
    *files: Path,
    forbidden: Collection[str] = (),
    more: Sequence[str] = (),
    **options: Any,
) -> list[Manifest]:
    """The objects that these values make where these objects run; forbidden kinds cannot be read."""
    with kubernetes_api(live, NAMESPACE, forbidden) as server:
        cluster = ("--dry-run=server", "--kube-apiserver", server, *more)
        return rendered(folder, values, *files, more=cluster, **options)


def shown_notes(folder: Path, *files: Path, live: Sequence[Manifest] = ()) -> str:
    """The notes where these objects run: helm itself shows notes only to those who have a cluster."""
    chart = folder / "flyserve"
    shutil.copytree(CHART, chart, dirs_exist_ok=True)
    shown = 'notes: |\n  {{- include (print $.Template.BasePath "/NOTES.txt") . | nindent 2 }}\n'
    (chart / "templates" / "shown.yaml").write_text(shown, encoding="utf-8")
    with kubernetes_api(live, NAMESPACE) as server:
        text = template(*files, chart=chart, more=("--dry-run=server", "--kube-apiserver", server))
    (notes,) = (m["notes"] for m in objects(text) if "notes" in m)
    return str(notes)


def objects(text: str) -> list[Manifest]:
    # libyaml's loader is safe as well, and ten times as fast.
    return [manifest for manifest in yaml.load_all(text, Loader=yaml.CSafeLoader) if manifest]


def one(manifests: list[Manifest], kind: str, name: str = "") -> Manifest:
    """The only object of a kind whose name ends so."""
    (found,) = (m for m in manifests if m["kind"] == kind and m["metadata"]["name"].endswith(name))
    return found


def pod_templates(manifests: list[Manifest]) -> list[Manifest]:
    """Every pod that the objects come to, with its metadata."""
    found: list[Manifest] = []

    def visit(node: Any) -> None:
        if isinstance(node, dict):
            if "containers" in node.get("spec", {}):
                found.append(node)
            for value in node.values():
                visit(value)
        elif isinstance(node, list):
            for value in node:
                visit(value)

    visit(manifests)
    return found


def deployments(manifests: list[Manifest], folder: Path) -> list[Deployment]:
    """The deployment files of the ConfigMap, as the commands read them."""
    files = one(manifests, "ConfigMap", "-config")["data"]
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [load_yaml(Deployment, folder / name) for name in files]


def fill(secrets: MountedSecrets, folder: Path) -> str:
    """Those of the secured example: certificates of an authority of their own, and a key; its token."""
    folder.mkdir()
    authority = Authority(folder)
    for role in CERTIFIED:
        more = ("localhost",) if role == "router" else ()
        secrets.show(f"flyserve-{role}-tls", certificate_files(authority, f"{role}.flyserve", *more))
    secrets.show("flyserve-client-tls", certificate_files(authority, "tester"))
    token = issue_key(folder / "keys.yaml", "tester", {})
    secrets.show("flyserve-api-keys", {"keys.yaml": (folder / "keys.yaml").read_bytes()})
    return token
