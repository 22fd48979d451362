"""Replicas that answered the handshake, and the pools that a stream's replica is picked from."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import grpc

from fly.errors import NotReady
from fly.messages import Endpoint, Load, ModelInfo, Role
from protos.flyserve.v1 import common_pb2
from protos.flyserve.v1.drafter_pb2_grpc import DrafterStub
from protos.flyserve.v1.target_pb2_grpc import TargetStub
from router.policies.base import Policy
from services.common.codec.shared import info_from_wire
from services.common.status import from_rpc_error

_HANDSHAKE_TIMEOUT_S = 5.0

Accepts = Callable[["Replica"], bool]
"""Whether a replica will do."""


class Replica:
    """One endpoint that answered the handshake, from then until it fails or goes.

    Attributes:
        info: What it serves.
        load: What it last said that it carries.
        outstanding: Sequences that this router has open there.
        is_broken: Set when a stream failed: it is not picked again before it answers another handshake.
        has_served: A stream was answered since the handshake.
    """

    def __init__(self, endpoint: Endpoint, channel: grpc.aio.Channel, info: ModelInfo, load: Load) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self.info = info
        self.load = load
        self.outstanding = 0
        self.is_broken = asyncio.Event()
        self.is_idle = asyncio.Event()
        self.is_idle.set()
        self.has_served = False

    @property
    def address(self) -> str:
        return self.endpoint.address

    @property
    def name(self) -> str:
        """For messages: where it is and what it serves."""
        return f"{self.info.role.value} {self.info.model_id!r} at {self.address}"

    @contextmanager
    def lease(self) -> Iterator[None]:
        """Counts one open sequence."""
        self.outstanding += 1
        self.is_idle.clear()
        try:
            yield
        finally:
            self.outstanding -= 1
            if not self.outstanding:
                self.is_idle.set()

    async def lost_connection(self) -> None:
        """Returns when the channel's connection is gone."""
        ready = grpc.ChannelConnectivity.READY
        while self.channel.get_state() is ready:
            await self.channel.wait_for_state_change(ready)

    def served(self, load: Load) -> None:
        """A step was answered."""
        self.load = load
        self.has_served = True


async def shake_hands(channel: grpc.aio.Channel, endpoint: Endpoint) -> tuple[ModelInfo, Load]:
    """Asks an endpoint what it serves.

    Raises:
        NotReady: It does not answer, or answers nonsense.
    """
    stub = TargetStub(channel) if endpoint.role is Role.TARGET else DrafterStub(channel)
    try:
        info, load = info_from_wire(await stub.Info(common_pb2.InfoRequest(), timeout=_HANDSHAKE_TIMEOUT_S))
    except grpc.aio.AioRpcError as error:
        raise NotReady(str(from_rpc_error(error))) from None
    except ValueError as error:
        raise NotReady(f"its Info makes no sense: {error}") from None
    return info, load


async def still_serves(replica: Replica) -> bool:
    """Asks a replica again, and takes its load over; False where it is away or serves something else."""
    try:
        info, replica.load = await shake_hands(replica.channel, replica.endpoint)
    except NotReady:
        return False
    return info == replica.info


class ReplicaPool:
    """The replicas of one tier that may get new sequences."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._replicas: list[Replica] = []
        self._changed = asyncio.Event()

    @property
    def replicas(self) -> Sequence[Replica]:
        return tuple(self._replicas)

    def add(self, replica: Replica) -> None:
        self._replicas.append(replica)
        self._changed.set()
        self._changed = asyncio.Event()

    def remove(self, replica: Replica) -> None:
        """Takes a replica out, if it is in."""
        if replica in self._replicas:
            self._replicas.remove(replica)

    def ready(self, accepts: Accepts) -> list[Replica]:
        """Those that will do."""
        return [r for r in self._replicas if not r.is_broken.is_set() and accepts(r)]

    def pick(self, accepts: Accepts) -> Replica | None:
        """The one for the next sequence, by the policy; None where none will do."""
        candidates = self.ready(accepts)
        return self._policy.choose(candidates) if candidates else None

    async def wait(self, accepts: Accepts, timeout_s: float) -> bool:
        """Waits at most `timeout_s` for a replica that will do; whether there is one."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.ready(accepts):
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True


def any_replica(replica: Replica) -> bool:
    """Accepts all."""
    return True


def with_weights(fingerprint: str) -> Accepts:
    """Accepts what serves these weights; all, where none are named."""
    if not fingerprint:
        return any_replica
    return lambda replica: replica.info.weight_fingerprint == fingerprint
