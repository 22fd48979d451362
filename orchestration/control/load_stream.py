"""The load of one instance, read from its server for as long as that serves."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from flyserve.core.messages import Load, ModelInfo, Role
from flyserve.v1 import common_pb2
from flyserve.v1.drafter_pb2_grpc import DrafterStub
from flyserve.v1.target_pb2_grpc import TargetStub
from flyserve.wire.streams import info_from_wire
from services.common.channel import open_channel
from services.common.security.identity import Identity, certificate_name

_INTERVAL_S = 1.0
_INFO_TIMEOUT_S = 5.0
"""A server that does not answer within this time counts as unreachable."""


Report = tuple[ModelInfo | None, Load]
"""The model of a server, None if it reports none, and its load."""


async def load_stream(role: Role, address: str, identity: Identity | None) -> AsyncGenerator[Report, None]:
    """Yield the server's report once a second, until it fails or accepts no new work."""
    tls = identity.peer_tls(certificate_name(role)) if identity else None
    async with open_channel(address, tls) as channel:
        end = asyncio.create_task(_end_of_serving(channel))
        try:
            while not end.done():
                yield await _report(role, channel)
                await asyncio.wait({end}, timeout=_INTERVAL_S)
        except grpc.aio.AioRpcError:
            return
        finally:
            end.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await end


async def _end_of_serving(channel: grpc.aio.Channel) -> None:
    """Return when the server reports that it is not serving, or the connection ends.

    NOTE: returning ends the health stream: a draining server waits for its streams.
    """
    request = health_pb2.HealthCheckRequest(service="")
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for response in health_pb2_grpc.HealthStub(channel).Watch(request):
            if response.status != health_pb2.HealthCheckResponse.SERVING:
                return


async def _report(role: Role, channel: grpc.aio.Channel) -> Report:
    stub = TargetStub(channel) if role is Role.TARGET else DrafterStub(channel)
    try:
        return info_from_wire(await stub.Info(common_pb2.InfoRequest(), timeout=_INFO_TIMEOUT_S))
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            raise
        return None, Load()
