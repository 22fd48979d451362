"""Desired against actual, replica by replica: starts what is missing, watches it, publishes where it is."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fly.messages import Role
from orchestration.registry import Registry
from orchestration.topology import ReplicaSpec
from services.common.backoff import Backoff
from services.common.channel import open_channel
from services.common.security.identity import Identity, PeerTls, certificate_name

logger = logging.getLogger(__name__)

_RETRY_S = 0.1


class ReplicaDown(Exception):
    """The replica does not run at present; it comes by itself. May say in one line what it waits for."""


class ReplicaLost(Exception):
    """The replica will not come back by itself, but another may run in its place; says why in one line."""


class ReplicaFailed(Exception):
    """The replica cannot be started; says why in one line."""


class Replica(Protocol):
    """One running replica, as its supervisor sees it."""

    async def address(self) -> str:
        """host:port of its server, as soon as it serves.

        Raises:
            ReplicaDown: It is being restarted.
            ReplicaLost: It has to be started anew.
            ReplicaFailed: Nothing would start it.
        """

    async def drain(self, grace_s: float) -> None:
        """Lets running streams finish within `grace_s`; never raises."""

    def kill(self) -> None:
        """Ends its processes; killing twice does nothing."""


class Fleet(Protocol):
    """Where replicas run."""

    def start(self, spec: ReplicaSpec) -> Replica:
        """Starts one; does not wait until it serves."""


class State(StrEnum):
    """How far a replica is."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """What became of one desired replica.

    Attributes:
        role: Its tier.
        replica: Its name.
        state: How far it is.
        address: host:port while it is listed, else empty.
        generation: Times that it was started, as far as it was listed.
        detail: Why it failed, or what it waits for, in one line.
    """

    role: Role
    replica: str
    state: State
    address: str = ""
    generation: int = 0
    detail: str = ""


@dataclass(slots=True)
class _Member:
    """A desired replica and its supervision."""

    spec: ReplicaSpec
    replica: Replica
    state: State = State.STARTING
    detail: str = ""
    backoff: Backoff = field(default_factory=Backoff)
    supervision: asyncio.Task[None] | None = None


class Reconciler:
    """Keeps the replicas that are desired running and listed; for one event loop."""

    def __init__(self, registry: Registry, fleet: Fleet, identity: Identity | None = None) -> None:
        """Watches replicas with an `identity`, or in plaintext."""
        self._registry = registry
        self._identity = identity
        self._fleet = fleet
        self._members: dict[str, _Member] = {}

    async def apply(self, specs: Iterable[ReplicaSpec], grace_s: float) -> None:
        """Starts the desired replicas that are missing and ends those that are desired no more."""
        desired = {spec.replica: spec for spec in specs}
        surplus = [name for name, member in self._members.items() if member.spec != desired.get(name)]
        await self._end(surplus, grace_s)
        for name, spec in desired.items():
            if name not in self._members:
                self._members[name] = member = _Member(spec, self._fleet.start(spec))
                member.supervision = asyncio.create_task(self._supervise(member))

    def report(self, role: Role, replica: str, address: str) -> None:
        """A replica says that it serves at `address`; one that is not desired is ignored."""
        if replica in self._members:
            self._registry.publish(role, replica, address)

    def status(self) -> list[ReplicaStatus]:
        return [self._status(member) for member in self._members.values()]

    async def stop(self, grace_s: float) -> None:
        """Drains and ends every replica."""
        await self._end(list(self._members), grace_s)

    async def _supervise(self, member: _Member) -> None:
        """Asks for the replica's address and follows its health there, anew after every restart."""
        while True:
            try:
                address = await member.replica.address()
            except ReplicaDown as down:
                member.state, member.detail = State.RESTARTING, str(down)
                await asyncio.sleep(_RETRY_S)
                continue
            except ReplicaLost as loss:
                await self._start_anew(member, str(loss))
                continue
            except ReplicaFailed as failure:
                member.state, member.detail = State.FAILED, str(failure)
                return
            await self._follow_health(member, address)
            await asyncio.sleep(_RETRY_S)

    async def _start_anew(self, member: _Member, reason: str) -> None:
        logger.warning("%s is started anew: %s", member.spec.replica, reason)
        member.state, member.detail = State.RESTARTING, reason
        if (endpoint := self._registry.endpoint(member.spec.replica)) is not None:
            self._registry.withdraw(endpoint.replica, endpoint.address)
        member.replica.kill()
        await asyncio.sleep(member.backoff.next_s())
        member.replica = self._fleet.start(member.spec)

    async def _follow_health(self, member: _Member, address: str) -> None:
        """Lists the replica while the server at `address` says that it serves; returns when it does not."""
        spec = member.spec
        try:
            async with open_channel(address, self._toward(spec.role)) as channel:
                async for is_serving in _health(channel):
                    if not is_serving:
                        # NOTE: leaving ends the stream: a server that drains waits for its streams.
                        self._registry.mark_draining(spec.replica, address)
                        return
                    self._registry.publish(spec.role, spec.replica, address)
                    member.state, member.detail, member.backoff = State.READY, "", Backoff()
        except grpc.aio.AioRpcError:
            pass
        member.state = State.RESTARTING
        self._registry.withdraw(spec.replica, address)

    def _toward(self, role: Role) -> PeerTls | None:
        return self._identity.toward(certificate_name(role)) if self._identity else None

    async def _end(self, names: list[str], grace_s: float) -> None:
        members = [self._members.pop(name) for name in names]
        await asyncio.gather(*(self._end_one(member, grace_s) for member in members))

    async def _end_one(self, member: _Member, grace_s: float) -> None:
        if member.supervision is not None:
            member.supervision.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await member.supervision
        endpoint = self._registry.endpoint(member.spec.replica)
        if endpoint is not None:
            self._registry.mark_draining(endpoint.replica, endpoint.address)
            await member.replica.drain(grace_s)
            self._registry.withdraw(endpoint.replica, endpoint.address)
        member.replica.kill()

    def _status(self, member: _Member) -> ReplicaStatus:
        spec = member.spec
        endpoint = self._registry.endpoint(spec.replica)
        address, generation = (endpoint.address, endpoint.generation) if endpoint else ("", 0)
        return ReplicaStatus(spec.role, spec.replica, member.state, address, generation, member.detail)


async def _health(channel: grpc.aio.Channel) -> AsyncIterator[bool]:
    """Whether the server takes new work: now, and whenever that changes."""
    request = health_pb2.HealthCheckRequest(service="")
    async for response in health_pb2_grpc.HealthStub(channel).Watch(request):
        yield response.status == health_pb2.HealthCheckResponse.SERVING
