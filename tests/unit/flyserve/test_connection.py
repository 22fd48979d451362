"""TLS, tokens, and what never travels in plaintext."""

from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import trustme

from flyserve import AsyncClient, Client, Tls
from flyserve.connection import make_connection
from flyserve.core.errors import ConfigError, NotReady
from tests.unit.flyserve.fake_generation import fake_generation

NO_CONNECTION = "127.0.0.1:.* answers, but no connection is made; check tls: "


@dataclass(frozen=True)
class Files:
    """Certificates of a made-up authority, and the server's credentials."""

    server: grpc.ServerCredentials
    mutual: grpc.ServerCredentials
    root: Path
    certificate: Path
    key: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder, authority = tmp_path_factory.mktemp("certificates"), trustme.CA()
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("client@flyserve.test")
    root, certificate, key = (folder / name for name in ("root.pem", "client.pem", "client.key"))
    authority.cert_pem.write_to_path(root)
    client.cert_chain_pems[0].write_to_path(certificate)
    client.private_key_pem.write_to_path(key)
    own = [(server.private_key_pem.bytes(), server.cert_chain_pems[0].bytes())]
    return Files(
        grpc.ssl_server_credentials(own),
        grpc.ssl_server_credentials(own, authority.cert_pem.bytes(), require_client_auth=True),
        root,
        certificate,
        key,
    )


async def test_tls_with_a_root_of_ones_own(files: Files) -> None:
    with fake_generation(files.server) as (service, address):
        with Client(address, tls=files.root, token="secret") as client:
            assert client.generate("hello").text == "the quick fox"
        async with AsyncClient(address, tls=str(files.root)) as client:
            assert (await client.generate("hello")).text == "the quick fox"
        assert [call.get("authorization") for call in service.metadata] == ["Bearer secret", None]
        with Client(address, tls=True, retries=0) as client, pytest.raises(NotReady, match=NO_CONNECTION):
            client.info(timeout_s=60)


def test_a_server_of_the_other_kind_is_not_said_to_be_away(files: Files) -> None:
    for credentials, tls in ((files.server, False), (files.mutual, files.root), (None, files.root)):
        with (
            fake_generation(credentials) as (_, address),
            Client(address, tls=tls, retries=0) as client,
            pytest.raises(NotReady, match=NO_CONNECTION),
        ):
            client.info(timeout_s=60)


def test_mutual_tls(files: Files) -> None:
    with fake_generation(files.mutual) as (_, address):
        tls = Tls(files.root, files.certificate, files.key)
        with Client(address, tls=tls) as client:
            assert client.info().target.model_id == "big"
        with Client(address, tls=Tls(files.root), retries=0) as client, pytest.raises(NotReady):
            client.info(timeout_s=5)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/tmp/socket", "dns:///localhost:1", "ipv4:127.0.0.9:1"],
)
def test_loopback_is_no_exposure(address: str) -> None:
    assert make_connection(address, False, "secret", False).metadata


@pytest.mark.parametrize(
    "address", ["router:1", "10.0.0.1:1", "[2001:db8::1]:1", "dns:///router.svc:1", "0.0.0.0:1"]
)
def test_exposure_is_rejected_unless_allowed(address: str, files: Files) -> None:
    with pytest.raises(ConfigError, match=r"token: would travel to .* in plaintext; use tls"):
        make_connection(["127.0.0.1:1", address], False, "secret", False)
    assert make_connection(address, False, "secret", True).metadata
    assert make_connection(address, True, "secret", False).metadata


def test_what_makes_no_sense_is_rejected(tmp_path: Path, files: Files) -> None:
    for address in ("", [], ["a:1", ""]):
        with pytest.raises(ConfigError, match="address: is"):
            make_connection(address, False, None, False)
    for address in ("127.0.0.1:115587", "a:0", "[::1]:-1", "dns:///a:65536", f"a:{'9' * 5000}"):
        with pytest.raises(ConfigError, match="its port must be from 1 to 65535"):
            make_connection(["b:1", address], False, None, False)
    with pytest.raises(ConfigError, match=r"address: is '\\udcff:1', must be host:port"):
        make_connection("\udcff:1", False, None, False)
    for address in ("a:65535", "[::1]:1", "dns:///a", "unix:/a:b:99999", "ipv4:1.2.3.4:1,1.2.3.5:2"):
        assert make_connection(address, False, None, False).addresses == (address,)
    for token in ("", "two\nlines", "schlüssel"):
        with pytest.raises(ConfigError, match="token: must be printable"):
            make_connection("127.0.0.1:1", False, token, False)
    with pytest.raises(ConfigError, match=r"tls: .*absent.pem: No such file"):
        make_connection("a:1", tmp_path / "absent.pem", None, False)
    (noise := tmp_path / "noise.pem").write_bytes(b"\xff\0")
    with pytest.raises(ConfigError, match=r"tls: .*noise.pem: is no file of certificates or of a key in PEM"):
        make_connection("a:1", noise, None, False)
    with pytest.raises(ConfigError, match="certificate and key belong together"):
        make_connection("a:1", Tls(certificate=files.certificate), None, False)
