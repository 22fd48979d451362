"""Supervisor: follow one instance from its start to its end; report its node, health and load."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fly.clock import Clock
from fly.messages import Load, Role
from orchestration.control.cluster_state import ClusterState
from orchestration.control.instances import InstanceKey, Phase
from protos.flyserve.v1 import common_pb2
from protos.flyserve.v1.drafter_pb2_grpc import DrafterStub
from protos.flyserve.v1.target_pb2_grpc import TargetStub
from protos.wire.streams import info_from_wire
from services.common.channel import open_channel
from services.common.security.identity import Identity, certificate_name

logger = logging.getLogger(__name__)

_RETRY_S = 0.1
_LOAD_INTERVAL_S = 1.0
_INFO_TIMEOUT_S = 5.0
"""A server that does not answer within this time counts as unreachable."""


class InstanceUnavailable(Exception):
    """The instance does not answer yet; the message may say in one line what it waits for."""


class InstanceLost(Exception):
    """The instance will not serve again; the message says why in one line."""


class InstanceRejected(Exception):
    """The configuration or the model of the instance was rejected; the message says why in one line."""


class InstanceHandle(Protocol):
    """The processes of one instance."""

    async def node(self) -> str:
        """Return the id of the node that it was placed on.

        Raises:
            InstanceUnavailable: No node has room for it yet.
        """

    async def address(self) -> str:
        """Return host:port of its server, as soon as it serves.

        Raises:
            InstanceUnavailable: It does not answer at present.
            InstanceLost: It has ended.
            InstanceRejected: It cannot be started.
        """

    async def drain(self, grace_s: float) -> None:
        """Let running streams finish within `grace_s`; never raises."""

    async def stop(self) -> None:
        """Stop its processes; a second call does nothing. Never raises."""


class Recorder:
    """Records the events of one instance in the cluster state."""

    def __init__(
        self, key: InstanceKey, cluster: ClusterState, clock: Clock, wake: Callable[[], None]
    ) -> None:
        self._key, self._cluster, self._clock, self._wake = key, cluster, clock, wake

    def on_placed(self, node: str) -> None:
        self._cluster.record(self._key, node=node, waiting_for="")

    def on_waiting(self, reason: str) -> None:
        self._cluster.record(self._key, waiting_for=reason)

    def on_load(self, address: str, load: Load) -> None:
        before = self._cluster.instances.get(self._key)
        self._cluster.mark_ready(self._key, address, self._clock.now())
        if before is not None and before.phase is not Phase.READY:
            self._wake()
        self._cluster.record(self._key, load=load)

    def on_unreachable(self) -> None:
        self._cluster.mark_unreachable(self._key, self._clock.now())
        self._wake()

    def on_lost(self, fault: str, is_rejection: bool) -> None:
        logger.warning("%s is lost: %s", self._key, fault)
        self._cluster.mark_lost(self._key, fault, self._clock.now(), is_rejection)
        self._wake()


async def supervise(
    handle: InstanceHandle,
    role: Role,
    recorder: Recorder,
    address: str = "",
    identity: Identity | None = None,
) -> None:
    """Follow an instance, at host:port `address` if already known; return when it is lost.

    Without an `identity`, calls to it are in plaintext.
    """
    while True:
        if address:
            async with aclosing(_loads(role, address, identity)) as loads:
                async for load in loads:
                    recorder.on_load(address, load)
            recorder.on_unreachable()
            await asyncio.sleep(_RETRY_S)
        try:
            recorder.on_placed(await handle.node())
            address = await handle.address()
        except InstanceUnavailable as unavailable:
            recorder.on_waiting(str(unavailable))
            await asyncio.sleep(_RETRY_S)
        except (InstanceLost, InstanceRejected) as loss:
            recorder.on_lost(str(loss), isinstance(loss, InstanceRejected))
            return


async def _loads(role: Role, address: str, identity: Identity | None) -> AsyncGenerator[Load, None]:
    """Yield the server's load once a second, until it fails or accepts no new work."""
    tls = identity.peer_tls(certificate_name(role)) if identity else None
    async with open_channel(address, tls) as channel:
        end = asyncio.create_task(_end_of_serving(channel))
        try:
            while not end.done():
                yield await _load(role, channel)
                await asyncio.wait({end}, timeout=_LOAD_INTERVAL_S)
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


async def _load(role: Role, channel: grpc.aio.Channel) -> Load:
    stub = TargetStub(channel) if role is Role.TARGET else DrafterStub(channel)
    try:
        _, load = info_from_wire(await stub.Info(common_pb2.InfoRequest(), timeout=_INFO_TIMEOUT_S))
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            raise
        return Load()
    return load
