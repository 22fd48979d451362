"""A whole deployment with certificates and API keys, from its file, with simulated engines."""

import os
from pathlib import Path

import pytest
import yaml

from fly.errors import NotReady, Unauthenticated
from flyserve import Client, Tls
from orchestration.deployment.file import load_deployment
from orchestration.deployment.plan import ACTORS
from orchestration.local.runner import LocalOptions, local_deployment
from router.security.keys import issue_key
from tests.nightly.ray.cluster_rig import FOLDER, SIMULATED, model
from tests.support.certificates import Authority

ROLES = ("target", "drafter", "sub-drafter", "router", "controller")


def test_a_deployment_with_certificates_and_keys_serves_only_clients_that_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER), os.environ["PYTHONPATH"]]))
    authority = Authority(tmp_path)
    for role in ROLES:
        authority.issue(f"{role}.flyserve", *(["localhost"] if role == "router" else []))
    token = issue_key(tmp_path / "keys.yaml", "alice", {})
    tls = {"certificate": "{role}.pem", "key": "{role}.key", "ca": "ca.pem"}
    file = tmp_path / "deployment.yaml"
    config = {
        "target": {"model": model(tmp_path, "target")},
        "drafter": {"model": model(tmp_path, "drafter", base_s=0.002)},
        "sub_drafter": {"engine": "ngram"},
        "router": {"grpc_port": 0},
        "security": {"tls": tls, "auth_tokens_file": "keys.yaml"},
    }
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    options = LocalOptions(actors={**ACTORS, **SIMULATED}, startup_timeout_s=600.0)
    with local_deployment(load_deployment(file), lambda status: None, options) as running:
        address = running.address.replace("127.0.0.1", "localhost")
        trust = Tls(root=tmp_path / "ca.pem")
        with Client(address, tls=trust, token=token) as alice:
            response = alice.generate("Ada has 3 books", 24)
            assert len(response.tokens) > 0 and response.statistics.drafted > 0
        with Client(address, tls=trust, retries=0) as anonymous, pytest.raises(Unauthenticated):
            anonymous.info()
        with Client(address, retries=0) as plain, pytest.raises(NotReady):
            plain.info(5.0)
