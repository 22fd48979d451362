"""The rendered processes start with mounted certificates and API keys, and read changed ones."""

from pathlib import Path
from typing import Any

import pytest

from tests.chart.charts import SECRETS, SECURED, Manifest, pod_templates, rendered


@pytest.fixture
def manifests(tmp_path: Path) -> list[Manifest]:
    return rendered(tmp_path, None, SECURED)


def mounts(pod: Any) -> dict[str, str]:
    """Folder by folder, which Secret is there."""
    names = {v["name"]: v["secret"]["secretName"] for v in pod["spec"]["volumes"] if "secret" in v}
    container = pod["spec"]["containers"][0]
    return {m["mountPath"]: names[m["name"]] for m in container["volumeMounts"] if m["name"] in names}


def test_a_pod_has_the_certificates_of_its_roles_and_no_others(manifests: list[Manifest]) -> None:
    found = {pod["metadata"]["labels"]["flyserve.io/role"]: mounts(pod) for pod in pod_templates(manifests)}

    def certificates(*roles: str) -> dict[str, str]:
        return {f"{SECRETS}/tls/{role}": f"flyserve-{role}-tls" for role in roles}

    keys = {f"{SECRETS}/api-keys": "flyserve-api-keys"}
    assert found == {
        "router": certificates("router") | keys,
        "head": certificates("controller"),
        # The drafter is its guest.
        "target": certificates("target", "drafter"),
        "sub_drafter": certificates("sub-drafter"),
        "apply": {},
        "test": certificates("client") | {f"{SECRETS}/ca": "flyserve-router-tls"},
    }


def test_whom_to_trust_is_mounted_without_the_routers_key(manifests: list[Manifest]) -> None:
    (pod,) = (p for p in pod_templates(manifests) if p["metadata"]["labels"]["flyserve.io/role"] == "test")
    (volume,) = (v for v in pod["spec"]["volumes"] if v["name"] == "ca")
    assert volume["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
