"""Security configuration of each process of a deployment."""

from pathlib import Path
from typing import Any

import pytest

from flyserve.core.errors import ConfigError
from orchestration.deployment.diff import changes, require_possible
from orchestration.deployment.file import Deployment, load_deployment
from orchestration.deployment.plan import plan, router_config
from orchestration.deployment.security import security_of
from router.config import RouterConfig
from services.common.config import parse
from services.common.security.identity import CONTROLLER
from services.drafter.config import DrafterConfig
from services.lookup.config import SuffixConfig
from services.target.config import TargetConfig

SECURITY = """
target: {model: big}
drafter: {model: big}
sub_drafter: {}
security:
  tls: {certificate: "certs/{role}.pem", key: "/secret/{role}.key", ca: ca.pem, client_certificates: true}
  auth_tokens_file: keys.yaml
  health_port: 0
"""


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    (tmp_path / "big").mkdir()
    (file := tmp_path / "deployment.yaml").write_text(SECURITY)
    return load_deployment(file)


def test_every_replica_has_a_certificate_of_its_role_and_nothing_else(
    deployment: Deployment, tmp_path: Path
) -> None:
    specs = {spec.replica: spec for spec in plan(deployment, "here:1")}
    for name, role, model in (
        ("target-0", "target", TargetConfig),
        ("drafter-0", "drafter", DrafterConfig),
        ("sub_drafter-0", "sub-drafter", SuffixConfig),
    ):
        security = parse(model, dict(specs[name].config), name).security
        assert security.tls is not None and security.health_port is None
        assert security.tls.certificate == tmp_path / f"certs/{role}.pem"
        assert security.tls.key == Path(f"/secret/{role}.key")
        assert security.tls.ca == tmp_path / "ca.pem"
        assert "keys.yaml" not in str(specs[name].config)


def test_only_the_router_gets_keys_clients_and_probes(deployment: Deployment, tmp_path: Path) -> None:
    config = parse(RouterConfig, router_config(deployment, "here:1", 60.0, 5.0), "router").security
    assert config.auth_tokens_file == tmp_path / "keys.yaml"
    assert config.tls is not None and config.tls.client_certificates and config.health_port == 0
    assert config.tls.certificate == tmp_path / "certs/router.pem"
    assert security_of(deployment.security, CONTROLLER)["tls"]["certificate"].endswith("certs/controller.pem")


@pytest.mark.parametrize(
    ("more", "is_possible"),
    [
        ({"auth_tokens_file": None}, True),
        ({"health_port": None}, True),
        ({"tls": {"client_certificates": False}}, True),
        ({"tls": None, "health_port": None}, False),
        ({"tls": {"ca": "other.pem"}}, False),
    ],
)
def test_keys_of_routers_alone_may_change_while_replicas_run(
    deployment: Deployment, more: dict[str, Any], is_possible: bool
) -> None:
    said = deployment.model_dump(mode="json")
    tls = said["security"]["tls"]
    if isinstance(more.get("tls"), dict):
        more = {**more, "tls": {**tls, **more["tls"]}}
    found = changes(deployment, parse(Deployment, {**said, "security": {**said["security"], **more}}, "test"))
    assert found
    if is_possible:
        require_possible(found)
    else:
        with pytest.raises(ConfigError, match="cannot be changed while the deployment runs"):
            require_possible(found)
