"""TLS between all services: roles, and every attempt of an unauthorized peer."""

import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import httpx2
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from flyserve.core.errors import ConfigError
from flyserve.v1 import common_pb2
from flyserve.v1.generation_pb2_grpc import GenerationStub
from flyserve.v1.target_pb2_grpc import TargetStub
from orchestration.control.registry import Registry, registry_service
from orchestration.deployment.security import controller_identity, registry_access_policy
from services.common.channel import open_channel
from services.common.config import parse
from services.common.host import Host
from services.common.security.access_policy import AccessPolicy, Check
from services.lookup.config import SuffixConfig
from services.lookup.servicer import create_host as create_sub_drafter
from services.target.config import TargetConfig
from services.target.servicer import create_host as create_target
from tests.contract.router_rig import FLY, ids, make_request
from tests.contract.tls_rig import PUBLIC, ROUTER, SIMULATED, TARGET, a_target, info, secured_system
from tests.support.certificates import Authority
from tests.support.serving import becomes_true, serving


async def test_a_whole_system_generates_over_mutual_tls(authority: Authority, tmp_path: Path) -> None:
    async with (
        secured_system(authority, tmp_path) as router,
        open_channel(router.address, authority.anonymous(PUBLIC)) as channel,
    ):
        waits = make_request(FLY, 40, speculation={"reproducible_drafts": True})
        num_drafted = 0
        while not num_drafted:  # the router may meet the drafter later than the target
            response = await GenerationStub(channel).Generate(waits, timeout=240)
            assert len(ids(response.choices[0])) == 40
            num_drafted = response.choices[0].statistics.drafted
        trust = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        async with httpx2.AsyncClient(base_url=router.addresses[1], verify=trust) as http:
            headers, named = {"host": PUBLIC}, {"sni_hostname": PUBLIC}
            answer = await http.get("/health", headers=headers, extensions=named)
        assert router.addresses[1].startswith("https://") and answer.status_code == 200


async def a_look_up(authority: Authority, role: str) -> Host:
    config = {"role": role.replace("-", "_"), "security": authority.security(f"{role}.flyserve")}
    return await create_sub_drafter(parse(SuffixConfig, config, "test"))


async def a_registry(authority: Authority) -> Host:
    identity = controller_identity(authority.security("controller.flyserve"))
    return Host(registry_service(Registry()), access_policy=registry_access_policy(identity))


CALLEES: dict[str, tuple[Callable[[Authority], Awaitable[Host]], str, set[str]]] = {
    "target": (a_target, "Target/Info", {"router", "controller"}),
    "drafter": (lambda authority: a_look_up(authority, "drafter"), "Drafter/Info", {"router", "controller"}),
    "sub-drafter": (
        lambda authority: a_look_up(authority, "sub-drafter"),
        "Drafter/Info",
        {"drafter", "controller"},
    ),
    "controller": (a_registry, "Registry/Report", {"router", "drafter"}),
}
"""Services, a method of each without arguments, and the roles that may call it."""


@pytest.mark.parametrize("name", CALLEES)
async def test_each_service_accepts_the_roles_that_need_it(authority: Authority, name: str) -> None:
    make, method, accepted = CALLEES[name]
    found = set()
    async with serving(await make(authority)) as address:
        for role in ("router", "drafter", "sub-drafter", "target", "controller", "unknown"):
            peer = authority.peer(
                authority.issue(f"{role}.flyserve", file=f"caller-{role}"), f"{name}.flyserve"
            )
            async with open_channel(address, peer) as channel:
                call = channel.unary_unary(f"/flyserve.v1.{method}")(b"", timeout=60)
                code = await call.code()
                assert code in (grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED)
                found |= {role} if code is grpc.StatusCode.OK else set()
    assert found == accepted


async def test_a_controller_may_call_info_of_a_target_and_nothing_else(authority: Authority) -> None:
    peer = authority.peer(authority.issue("controller.flyserve"), TARGET)
    async with serving(await a_target(authority)) as address, open_channel(address, peer) as channel:
        assert await info(address, peer) is grpc.StatusCode.OK
        call = TargetStub(channel).VerifyBatches(timeout=60)
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_peers_without_a_valid_certificate_cannot_connect(authority: Authority, tmp_path: Path) -> None:
    (other := tmp_path / "other").mkdir()
    of_another = Authority(other).issue(ROUTER)
    of_another["ca"] = str(tmp_path / "ca.pem")
    expired = authority.issue(ROUTER, file="expired", expired=True)
    async with serving(await a_target(authority)) as address:
        for tls in (
            None,
            authority.anonymous(TARGET),
            authority.peer(of_another, TARGET),
            authority.peer(expired, TARGET),
            authority.peer(authority.issue(ROUTER), "drafter.flyserve"),
        ):
            assert await info(address, tls) is grpc.StatusCode.UNAVAILABLE
        assert await info(address, authority.peer(authority.issue(ROUTER), TARGET)) is grpc.StatusCode.OK


async def test_a_server_whose_certificate_has_expired_is_not_called(authority: Authority) -> None:
    security = {"tls": authority.issue(TARGET, expired=True)}
    host = await create_target(parse(TargetConfig, {**SIMULATED, "security": security}, "test"))
    async with serving(host) as address:
        peer = authority.peer(authority.issue(ROUTER), TARGET)
        assert await info(address, peer) is grpc.StatusCode.UNAVAILABLE


async def test_tls_servers_share_a_range_of_ports(authority: Authority) -> None:
    """Take the first port, as another replica on the same pod does, and expect a later one of the range."""
    router = authority.peer(authority.issue(ROUTER), TARGET)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        security = {"address": f"127.0.0.1:{port}-{port + 20}", "security": authority.security(TARGET)}
        host = await create_target(parse(TargetConfig, {**SIMULATED, **security}, "test"))
        async with serving(host) as address:
            assert host.port > port
            assert await info(address, router) is grpc.StatusCode.OK


async def test_a_tls_call_to_a_plaintext_port_fails_and_the_port_keeps_serving(authority: Authority) -> None:
    async with serving(await create_target(parse(TargetConfig, SIMULATED, "test"))) as address:
        peer = authority.peer(authority.issue(ROUTER), TARGET)
        assert await info(address, peer) is grpc.StatusCode.UNAVAILABLE
        assert await info(address, None) is grpc.StatusCode.OK


async def test_the_public_service_can_require_client_certificates(
    authority: Authority, tmp_path: Path
) -> None:
    tls = {**authority.issue(ROUTER, PUBLIC), "client_certificates": True}
    async with secured_system(authority, tmp_path, tls=tls) as router:
        client = authority.peer(authority.issue("alice.example.com"), PUBLIC)
        for peer, code in (
            (client, grpc.StatusCode.OK),
            (authority.anonymous(PUBLIC), grpc.StatusCode.UNAVAILABLE),
        ):
            async with open_channel(router.address, peer) as channel:
                try:
                    await GenerationStub(channel).Info(common_pb2.InfoRequest(), timeout=60)
                    found = grpc.StatusCode.OK
                except grpc.aio.AioRpcError as error:
                    found = error.code()
            assert found is code


async def test_the_plaintext_port_serves_health_and_nothing_else(authority: Authority) -> None:
    host = await a_target(authority, health_port=0)
    async with serving(host):
        assert host.health_port not in (0, host.port)
        async with open_channel(f"127.0.0.1:{host.health_port}") as channel:
            answer = await HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert await info(f"127.0.0.1:{host.health_port}", None) is grpc.StatusCode.UNIMPLEMENTED
    assert await becomes_true(lambda: not is_open(host.health_port), 10.0)


@pytest.mark.parametrize(
    ("interface", "check", "warning"),
    [
        ("0.0.0.0", None, "accepts every caller that can reach it"),
        ("0.0.0.0", lambda method, context: None, "API keys are sent to"),
        ("127.0.0.1", None, ""),
        ("[::1]", None, ""),
        ("localhost", None, ""),
    ],
)
def test_a_server_that_others_can_reach_in_plaintext_logs_a_warning(
    interface: str, check: Check | None, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    AccessPolicy(check=check).log_exposure(f"{interface}:50051")
    assert warning in caplog.text and bool(warning) == bool(caplog.text)
    AccessPolicy(lambda: grpc.ssl_server_credentials([(b"", b"")]), check).log_exposure(f"{interface}:50051")
    assert len(caplog.records) == bool(warning)


@pytest.mark.parametrize("broken", ["certificate", "key", "ca"])
async def test_invalid_files_are_rejected_by_name(authority: Authority, broken: str) -> None:
    files = authority.issue(TARGET)
    Path(files[broken]).write_text("not PEM")
    with pytest.raises(ConfigError, match="do not belong together"):
        await create_target(parse(TargetConfig, {**SIMULATED, "security": {"tls": files}}, "test"))
    Path(files[broken]).unlink()
    with pytest.raises(ConfigError, match=f"tls.{broken}: .*No such file"):
        await create_target(parse(TargetConfig, {**SIMULATED, "security": {"tls": files}}, "test"))


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
