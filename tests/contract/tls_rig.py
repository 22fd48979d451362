"""A target, or a whole system, whose services have certificates."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from protos.flyserve.v1 import common_pb2
from protos.flyserve.v1.target_pb2_grpc import TargetStub
from router.config import RouterConfig
from router.server import create_host as create_router
from services.common.channel import open_channel
from services.common.config import parse
from services.common.host import Host
from services.common.security.identity import PeerTls
from services.drafter.config import DrafterConfig
from services.drafter.servicer import create_host as create_drafter
from services.lookup.config import LOOKUPS
from services.lookup.servicer import create_host as create_sub_drafter
from services.target.config import TargetConfig
from services.target.servicer import create_host as create_target
from tests.contract.fakes import save_tokenizer
from tests.support.certificates import Authority
from tests.support.serving import serving

SIMULATED = {"simulated": {"base_s": 0.001, "vocab_size": 304}}
TARGET, ROUTER = "target.flyserve", "router.flyserve"
PUBLIC = "llm.example.com"


async def a_target(authority: Authority, name: str = TARGET, **security: Any) -> Host:
    config = {**SIMULATED, "security": authority.security(name, **security)}
    return await create_target(parse(TargetConfig, config, "test"))


async def info(address: str, tls: PeerTls | None) -> grpc.StatusCode:
    """Call `Info` of a target; return the status."""
    async with open_channel(address, tls) as channel:
        try:
            await TargetStub(channel).Info(common_pb2.InfoRequest(), timeout=60)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


@asynccontextmanager
async def secured_system(authority: Authority, model: Path, **security: Any) -> AsyncIterator[Host]:
    """Run a router, target, drafter and sub-drafter, each with a certificate; yield the router's host."""

    def security_of(*names: str) -> dict[str, Any]:
        return {"security": authority.security(*names)}

    async with AsyncExitStack() as stack:

        async def serve(host: Host) -> str:
            return await stack.enter_async_context(serving(host))

        helper = await create_sub_drafter(parse(LOOKUPS, security_of("sub-drafter.flyserve"), "test"))
        helped = {**SIMULATED, **security_of("drafter.flyserve"), "sub_drafter": await serve(helper)}
        drafter = await serve(await create_drafter(parse(DrafterConfig, helped, "test")))
        target = await serve(await a_target(authority))
        own = authority.security(ROUTER, PUBLIC, **security)
        config = {"model": save_tokenizer(model), "grpc_port": 0, "http_port": 0, "security": own}
        made = parse(RouterConfig, {**config, "targets": [target], "drafters": [drafter]}, "test")
        host = await create_router(made)
        await serve(host)
        yield host
