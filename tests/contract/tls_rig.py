"""A target, or a whole system, whose services have certificates."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from flyserve.v1 import common_pb2
from flyserve.v1.target_pb2_grpc import TargetStub
from services.common.channel import open_channel
from services.common.config import parse
from services.common.host import Host
from services.common.security.identity import PeerTls
from services.target.config import TargetConfig
from services.target.servicer import create_host as create_target
from tests.contract.fakes import save_tokenizer
from tests.contract.system_rig import whole_system
from tests.support.certificates import Authority

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

    sections: dict[str, dict[str, Any]] = {
        "sub_drafter": {"security": authority.security("sub-drafter.flyserve")},
        "drafter": {**SIMULATED, "security": authority.security("drafter.flyserve")},
        "target": {**SIMULATED, "security": authority.security(TARGET)},
        "router": {"http_port": 0, "security": authority.security(ROUTER, PUBLIC, **security)},
    }
    async with whole_system(save_tokenizer(model), **sections) as hosts:
        yield hosts["router"]
