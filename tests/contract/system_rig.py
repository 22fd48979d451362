"""Whole systems on loopback: a router in front of a simulated target, a drafter and a sub-drafter."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from flyserve.core.messages import Load, ModelInfo
from flyserve.v1 import common_pb2
from flyserve.wire.streams import info_from_wire
from router.config import RouterConfig
from router.server import create_host as create_router
from services.common.config import parse
from services.common.host import Host
from services.drafter.config import DrafterConfig
from services.drafter.servicer import create_host as create_drafter
from services.lookup.config import SuffixConfig
from services.lookup.servicer import create_host as create_sub_drafter
from services.target.config import TargetConfig
from services.target.servicer import create_host as create_target

INSTANT: Mapping[str, Any] = {"base_s": 0.0, "per_token_s": 0.0, "per_token_above_s": 0.0}
"""A simulated model whose forwards take no time."""


@asynccontextmanager
async def whole_system(model: Path, **sections: Mapping[str, Any]) -> AsyncIterator[dict[str, Host]]:
    """Run every service until the block ends; yield their hosts by role.

    `sections` has keys of their configurations, by role: `router`, `target`, `drafter`, `sub_drafter`.
    """
    hosts: dict[str, Host] = {}

    async def start(role: str, kind: Any, create: Any, **fields: Any) -> str:
        host = hosts[role] = await create(parse(kind, {**fields, **sections.get(role, {})}, role))
        await host.start()
        return str(host.address)

    try:
        helper = await start("sub_drafter", SuffixConfig, create_sub_drafter)
        drafting = {"simulated": INSTANT, "sub_drafter": helper}
        drafter = await start("drafter", DrafterConfig, create_drafter, **drafting)
        target = await start("target", TargetConfig, create_target, simulated=INSTANT)
        places = {"targets": [target], "drafters": [drafter]}
        await start("router", RouterConfig, create_router, model=model, grpc_port=0, **places)
        yield hosts
    finally:
        # Together: the end of each metrics server takes half a second.
        await asyncio.gather(*(host.drain(0.0) for host in hosts.values()))


async def info_of(channel: grpc.aio.Channel, service: str = "Drafter") -> tuple[ModelInfo, Load]:
    """Return what a target or a drafter reports of itself."""
    answer = await channel.unary_unary(f"/flyserve.v1.{service}/Info")(b"")
    return info_from_wire(common_pb2.InfoResponse.FromString(answer))
