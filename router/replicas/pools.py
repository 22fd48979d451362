"""Replicas that answered the handshake, and the pools that a stream's replica is picked from."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from fly.errors import NotReady
from fly.messages import Endpoint, Load, ModelInfo, Role
from protos.flyserve.v1 import common_pb2
from protos.flyserve.v1.drafter_pb2_grpc import DrafterStub
from protos.flyserve.v1.target_pb2_grpc import TargetStub
from protos.wire.status import from_rpc_error
from protos.wire.streams import info_from_wire
from router.policies.base import Policy
from router.policies.key import RequestKey
from router.replicas.breaker import Breaker, BreakerState

_HANDSHAKE_TIMEOUT_S = 5.0
_SILENT_PROBES = 2
"""So many questions in a row without any answer, and a replica is gone. One may be our own delay."""

Accepts = Callable[["Replica"], bool]
"""Whether a replica will do."""


@dataclass(frozen=True, slots=True)
class Probing:
    """How it is found out that a replica is gone whose connection does not say so.

    Attributes:
        interval_s: Each replica is asked so often for its load, and whether it lives.
        timeout_s: For an answer.
    """

    interval_s: float = 2.0
    timeout_s: float = 3.0


class Replica:
    """One endpoint that answered the handshake, from then until it fails or goes.

    Attributes:
        info: What it serves.
        outstanding: Sequences that this router has open there.
        is_broken: Set when a stream failed: it is not picked again before it answers another handshake.
    """

    def __init__(
        self, endpoint: Endpoint, channel: grpc.aio.Channel, info: ModelInfo, load: Load, breaker: Breaker
    ) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self.info = info
        self.outstanding = 0
        self.is_broken = asyncio.Event()
        self.is_idle = asyncio.Event()
        self.is_idle.set()
        self._breaker = breaker
        self._hang_ups: list[Callable[[], object]] = []
        self._words = 0
        self._queued = self._others = 0
        self.told(load)

    @property
    def address(self) -> str:
        return self.endpoint.address

    @property
    def identity(self) -> str:
        """Its name in the deployment; its address where it has none."""
        return self.endpoint.replica or self.address

    @property
    def name(self) -> str:
        """For messages: where it is and what it serves."""
        return f"{self.info.role.value} {self.info.model_id!r} at {self.address}"

    @property
    def weight(self) -> int:
        """Sequences there: our own as we know them, the others' as it last said; waiting ones twice."""
        return self.outstanding + self._others + self._queued

    @property
    def is_on_trial(self) -> bool:
        """It failed, and has answered no stream since."""
        return self._breaker.state is not BreakerState.CLOSED

    @contextmanager
    def lease(self, hang_up: Callable[[], object]) -> Iterator[None]:
        """Counts one open sequence, whose stream `hang_up` ends at once."""
        self.outstanding += 1
        self._hang_ups.append(hang_up)
        self.is_idle.clear()
        try:
            yield
        finally:
            self.outstanding -= 1
            self._hang_ups.remove(hang_up)
            if not self.outstanding:
                self.is_idle.set()

    def hang_up(self) -> None:
        """Ends every stream: nothing will come of them."""
        for hang_up in self._hang_ups:
            hang_up()

    async def lost_connection(self) -> None:
        """Returns when the channel's connection is gone."""
        ready = grpc.ChannelConnectivity.READY
        while self.channel.get_state() is ready:
            await self.channel.wait_for_state_change(ready)

    def served(self, load: Load) -> None:
        """A step was answered."""
        self.told(load)
        # NOTE: streams may outlive their replica's place here; that says nothing of the next one.
        if not self.is_broken.is_set():
            self._breaker.answered()

    def told(self, load: Load) -> None:
        """It said what it carries."""
        self._words += 1
        self._queued = load.queued
        self._others = max(0, load.sequences + load.queued - self.outstanding)

    async def still_serves(self, timeout_s: float = _HANDSHAKE_TIMEOUT_S) -> bool:
        """Asks again; False where it is away, serves something else, or has nothing to say on any stream."""
        for _ in range(_SILENT_PROBES):
            words = self._words
            try:
                info, load = await shake_hands(self.channel, self.endpoint, timeout_s)
            except Silent:
                if self._words > words:
                    return True
            except NotReady:
                return False
            else:
                self.told(load)
                return info == self.info
        return False


class Silent(NotReady):
    """A replica does not answer in time."""


async def shake_hands(
    channel: grpc.aio.Channel, endpoint: Endpoint, timeout_s: float = _HANDSHAKE_TIMEOUT_S
) -> tuple[ModelInfo, Load]:
    """Asks an endpoint what it serves.

    Raises:
        Silent: It does not answer in time.
        NotReady: It is away, or answers nonsense.
    """
    stub = TargetStub(channel) if endpoint.role is Role.TARGET else DrafterStub(channel)
    try:
        info, load = info_from_wire(await stub.Info(common_pb2.InfoRequest(), timeout=timeout_s))
    except grpc.aio.AioRpcError as error:
        is_silent = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        raise (Silent if is_silent else NotReady)(str(from_rpc_error(error))) from None
    except ValueError as error:
        raise NotReady(f"its Info makes no sense: {error}") from None
    return info, load


class ReplicaPool:
    """The replicas of one tier that may get new sequences."""

    def __init__(self, policy: Policy, is_needed: bool = True) -> None:
        """Picks by `policy`; a tier that is needed has all its hopes in a replica on trial if it must."""
        self._policy = policy
        self._is_needed = is_needed
        self._replicas: list[Replica] = []
        self._changed = asyncio.Event()

    @property
    def replicas(self) -> Sequence[Replica]:
        return tuple(self._replicas)

    def add(self, replica: Replica) -> None:
        self._replicas.append(replica)
        self._policy.joined(replica)
        self._changed.set()
        self._changed = asyncio.Event()

    def remove(self, replica: Replica) -> None:
        """Takes a replica out, if it is in."""
        if replica in self._replicas:
            self._replicas.remove(replica)
            self._policy.left(replica)

    def ready(self, accepts: Accepts) -> list[Replica]:
        """Those that will do."""
        return [r for r in self._replicas if not r.is_broken.is_set() and accepts(r)]

    def pick(self, accepts: Accepts, key: RequestKey = ()) -> Replica | None:
        """The one for the next sequence, by the policy; None where none will do.

        A replica on trial gets one sequence at a time, as long as others will do, or nobody is needed.
        """
        ready = self.ready(accepts)
        trusted = [replica for replica in ready if not (replica.is_on_trial and replica.outstanding)]
        candidates = trusted or (ready if self._is_needed else [])
        if not candidates:
            return None
        return self._policy.choose(candidates, key)

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
