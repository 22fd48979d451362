"""Follows one instance from its start to its end: where it is, whether it serves, what it carries."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fly.messages import Load, Role
from protos.flyserve.v1 import common_pb2
from protos.flyserve.v1.drafter_pb2_grpc import DrafterStub
from protos.flyserve.v1.target_pb2_grpc import TargetStub
from protos.wire.streams import info_from_wire
from services.common.channel import open_channel
from services.common.security.identity import Identity, certificate_name

_RETRY_S = 0.1
_LOAD_S = 1.0
"""How often a replica is asked for its load."""
_ANSWER_S = 5.0
"""A server that does not answer within this time is taken for hung."""


class ReplicaDown(Exception):
    """The instance cannot be asked at present, but may come; may say in one line what it waits for."""


class ReplicaLost(Exception):
    """The instance will not serve again; says why in one line."""


class ReplicaRefused(Exception):
    """The instance was rejected by its configuration or its model; says why in one line."""


class Replica(Protocol):
    """One instance's processes."""

    async def node(self) -> str:
        """Id of the node that it was placed on.

        Raises:
            ReplicaDown: No node has room for it yet.
        """

    async def address(self) -> str:
        """host:port of its server, as soon as it serves.

        Raises:
            ReplicaDown: It cannot be asked at present.
            ReplicaLost: It has ended.
            ReplicaRefused: It cannot be started.
        """

    async def drain(self, grace_s: float) -> None:
        """Lets running streams finish within `grace_s`; never raises."""

    async def end(self) -> None:
        """Ends its processes; ending twice does nothing. Never raises."""


class Observer(Protocol):
    """Is told what becomes of an instance."""

    def placed(self, node: str) -> None: ...

    def waits(self, reason: str) -> None: ...

    def ready(self, address: str) -> None: ...

    def loaded(self, load: Load) -> None: ...

    def unreachable(self) -> None: ...

    def lost(self, fault: str, is_rejection: bool) -> None: ...


async def supervise(
    replica: Replica, role: Role, observer: Observer, address: str = "", identity: Identity | None = None
) -> None:
    """Follows an instance; returns when it is lost.

    Args:
        replica: Its processes.
        role: Its tier.
        observer: Is told what becomes of it.
        address: Of its server, where that is known from before.
        identity: By which it is asked; None asks in plaintext.
    """
    while True:
        if address:
            async with aclosing(_loads(role, address, identity)) as loads:
                async for load in loads:
                    observer.ready(address)
                    observer.loaded(load)
            observer.unreachable()
            await asyncio.sleep(_RETRY_S)
        try:
            observer.placed(await replica.node())
            address = await replica.address()
        except ReplicaDown as down:
            observer.waits(str(down))
            await asyncio.sleep(_RETRY_S)
        except (ReplicaLost, ReplicaRefused) as loss:
            observer.lost(str(loss), isinstance(loss, ReplicaRefused))
            return


async def _loads(role: Role, address: str, identity: Identity | None) -> AsyncGenerator[Load, None]:
    """What the server carries, now and then, for as long as it takes new work."""
    tls = identity.toward(certificate_name(role)) if identity else None
    async with open_channel(address, tls) as channel:
        leaving = asyncio.create_task(_leaves(channel))
        try:
            while not leaving.done():
                yield await _load(role, channel)
                await asyncio.wait({leaving}, timeout=_LOAD_S)
        except grpc.aio.AioRpcError:
            return
        finally:
            leaving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leaving


async def _leaves(channel: grpc.aio.Channel) -> None:
    """Returns when the server says that it takes no new work, or is gone.

    NOTE: returning ends the stream: a server that drains waits for its streams.
    """
    request = health_pb2.HealthCheckRequest(service="")
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for response in health_pb2_grpc.HealthStub(channel).Watch(request):
            if response.status != health_pb2.HealthCheckResponse.SERVING:
                return


async def _load(role: Role, channel: grpc.aio.Channel) -> Load:
    stub = TargetStub(channel) if role is Role.TARGET else DrafterStub(channel)
    try:
        _, load = info_from_wire(await stub.Info(common_pb2.InfoRequest(), timeout=_ANSWER_S))
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            raise
        return Load()
    return load
