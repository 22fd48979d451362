"""Certificate rotation while services run, for servers and for clients."""

import asyncio
import ssl
from pathlib import Path

import grpc

from flyserve.core.clock import SystemClock
from flyserve.core.endpoints import Endpoint
from flyserve.core.messages import Role
from orchestration.control.registry import Registry, registry_service
from orchestration.deployment.security import controller_identity, registry_access_policy
from services.common.endpoint_sources import RegistryEndpointSource
from services.common.host import Host
from tests.contract.tls_rig import PUBLIC, ROUTER, TARGET, a_target, info, secured_system
from tests.support.certificates import Authority
from tests.support.serving import serving


async def test_a_server_reloads_its_files_and_keeps_the_old_ones_while_the_new_are_incomplete(
    authority: Authority, tmp_path: Path
) -> None:
    router = authority.issue(ROUTER)
    async with serving(await a_target(authority)) as address:
        own = tmp_path / "target.pem"
        good = own.read_bytes()
        own.write_bytes(good[: len(good) // 2])
        assert await info(address, authority.peer(router, TARGET)) is grpc.StatusCode.OK
        authority.issue("elsewhere.flyserve", file="target")
        assert await info(address, authority.peer(router, TARGET)) is grpc.StatusCode.UNAVAILABLE
        assert await info(address, authority.peer(router, "elsewhere.flyserve")) is grpc.StatusCode.OK


async def test_a_router_calls_and_serves_with_rotated_files(authority: Authority, tmp_path: Path) -> None:
    """Rotate every certificate: a new authority signs all of them."""
    registry, clock = Registry(), SystemClock()
    identity = controller_identity(authority.security("controller.flyserve"))
    caller = controller_identity(authority.security(ROUTER))
    assert identity is not None and caller is not None
    host = Host(registry_service(registry), access_policy=registry_access_policy(identity))
    async with serving(host) as address:
        watch = RegistryEndpointSource(address, clock, caller).watch()
        assert not (await anext(watch)).endpoints
        await watch.aclose()
        renewed = Authority(tmp_path)
        renewed.issue("controller.flyserve")
        renewed.issue(ROUTER)
        registry.publish((Endpoint(Role.TARGET, "127.0.0.1:1", "target-0"),))
        watch = RegistryEndpointSource(address, clock, caller).watch()
        async with asyncio.timeout(240):
            assert [e.replica for e in (await anext(watch)).endpoints] == ["target-0"]
        await watch.aclose()


async def test_the_http_server_reloads_its_files(authority: Authority, tmp_path: Path) -> None:
    async with secured_system(authority, tmp_path) as router:
        before = await served_certificate(router.addresses[1])
        assert await answer_in_plaintext(router.addresses[1]) == b""
        authority.issue(ROUTER, PUBLIC)
        assert await served_certificate(router.addresses[1]) != before


async def served_certificate(url: str) -> bytes:
    """Return the certificate that an HTTPS server sends to a new connection."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, port = url.removeprefix("https://").split(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert isinstance(shown, bytes)
        return shown
    finally:
        writer.close()
        await writer.wait_closed()


async def answer_in_plaintext(url: str) -> bytes:
    """Return the answer of an HTTPS server to a plain HTTP request."""
    host, port = url.removeprefix("https://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /health HTTP/1.1\r\nhost: here\r\n\r\n")
    try:
        return await asyncio.wait_for(reader.read(), 240)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()
