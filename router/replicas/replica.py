"""A replica that answered the handshake: its load, its health, and the sequences that it holds."""

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from flyserve.core.clock import Clock
from flyserve.core.endpoints import Endpoint
from flyserve.core.errors import InvalidRequest, NotReady
from flyserve.core.ewma import Ewma
from flyserve.core.lookup_benefit import LookupCosts
from flyserve.core.messages import Load, ModelInfo, Role
from flyserve.v1 import common_pb2
from flyserve.v1.drafter_pb2_grpc import DrafterStub
from flyserve.v1.target_pb2_grpc import TargetStub
from flyserve.wire.status import from_rpc_error
from flyserve.wire.streams import info_from_wire
from router.replicas.acceptance import Acceptance, AcceptanceState
from router.replicas.breaker import Breaker
from services.common.shared_stream.client import is_task_cancelled

_HANDSHAKE_TIMEOUT_S = 5.0
_MAX_FAILED_PROBES = 2
"""Probes in a row without an answer after which a replica is unhealthy. One may be a delay of our own."""

_SHARE_BESIDE_OTHERS = 1 / 8
_NEWEST_SHARE = 0.1
"""Weight of the latest step in the usual duration."""


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """Health probes, which find a dead replica whose connection does not report it.

    Attributes:
        interval_s: Time between two probes of a replica; a probe also returns its load.
        timeout_s: Time to wait for the answer.
    """

    interval_s: float = 2.0
    timeout_s: float = 3.0


class StepPace:
    """The usual time from a step's request to its answer, as this router observes it.

    Attributes:
        usual_s: Seconds of a usual step; of the latest unusual one while there was no usual one; else None.
    """

    def __init__(self) -> None:
        self.usual_s: float | None = None
        self._mean_s = Ewma(_NEWEST_SHARE)

    def record(self, seconds: float, is_usual: bool) -> None:
        """Record a step; one that computed a prompt is not usual."""
        if is_usual:
            self._mean_s.add(seconds)
        self.usual_s = seconds if self._mean_s.value is None else self._mean_s.value


class Replica:
    """An endpoint that answered the handshake, until it fails or is removed.

    Attributes:
        info: Model that it serves.
        in_flight: Sequences that this router has open there.
        is_broken: Set when its connection or a health probe failed, or no step is answered. The replica is
            not picked again before another handshake.
        is_suspect: Set when a stream failed, to have the replica probed at once.
        is_idle: Set while this router has no open sequence there.
        pace: Usual duration of a step.
        lookup_costs: Durations of a target's steps, with drafts that were looked up and without drafts.
        acceptance: Acceptance of a drafter's drafts.
        open_sequences: Sequences that it reported last, of all routers, without those that wait.
        num_answers: Steps that it has answered to this router.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        channel: grpc.aio.Channel,
        info: ModelInfo,
        load: Load,
        breaker: Breaker,
        clock: Clock,
    ) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self.info = info
        self.in_flight = 0
        self.is_broken = asyncio.Event()
        self.is_suspect = asyncio.Event()
        self.is_idle = asyncio.Event()
        self.is_idle.set()
        self.pace = StepPace()
        self.lookup_costs = LookupCosts()
        self.acceptance = Acceptance()
        self.open_sequences = 0
        self.num_answers = 0
        self._breaker = breaker
        self._clock = clock
        self._full_until_s = -math.inf
        self._cancel_stream: list[Callable[[], object]] = []
        self._num_reports = 0
        self._queued = self._others = 0
        self.record_load(load)

    @property
    def address(self) -> str:
        return self.endpoint.address

    @property
    def identity(self) -> str:
        """Name in the deployment; the address if it has none."""
        return self.endpoint.replica or self.address

    @property
    def name(self) -> str:
        """Tier, model and address, for messages."""
        return f"{self.info.role.value} {self.info.model_id!r} at {self.address}"

    @property
    def load(self) -> int:
        """Sequences there: our own by our count, others by the last report; queued ones count twice."""
        return self.in_flight + self._others + self._queued

    @property
    def is_half_open(self) -> bool:
        """True if it failed and has not answered a stream since."""
        return self._breaker.has_failed

    @property
    def is_left_out(self) -> bool:
        """True if it is a drafter whose drafts are rejected, while others draft better."""
        return self.acceptance.state is AcceptanceState.LEFT_OUT

    @property
    def places(self) -> int | None:
        """Sequences that this router may have there; None if unlimited.

        Other routers' sequences take places. Beside them an eighth is always left, for which this router may
        have to queue at the replica: otherwise the routers that came first could keep all places.
        """
        most = self.info.max_sequences
        if self.has_refused:
            return self.in_flight
        return max(most - self._others, math.ceil(most * _SHARE_BESIDE_OTHERS)) if most else None

    @property
    def has_refused(self) -> bool:
        """True if it refused a sequence, none of ours has ended there since, and the delay is not over."""
        return self._clock.now() < self._full_until_s

    @property
    def is_full(self) -> bool:
        """True if another sequence would probably be refused or queued."""
        most = self.info.max_sequences
        return self.has_refused or (bool(most) and self.in_flight + self._others >= most)

    @contextmanager
    def lease(self, cancel_stream: Callable[[], object]) -> Iterator[None]:
        """Count one open sequence; `cancel_stream` ends its stream at once."""
        self.in_flight += 1
        self._cancel_stream.append(cancel_stream)
        self.is_idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            self._full_until_s = -math.inf
            self._cancel_stream.remove(cancel_stream)
            if not self.in_flight:
                self.is_idle.set()

    def cancel_streams(self) -> None:
        """Cancel every open stream: no answer is expected."""
        for cancel in self._cancel_stream:
            cancel()

    def fail(self) -> None:
        """Take it out of use until its next handshake, and cancel every open stream."""
        self.is_broken.set()
        self.cancel_streams()

    async def lost_connection(self) -> None:
        """Return when the channel's connection is lost."""
        ready = grpc.ChannelConnectivity.READY
        while self.channel.get_state() is ready:
            await self.channel.wait_for_state_change(ready)

    def record_answer(self, load: Load) -> None:
        """Record the answer to a step."""
        self.num_answers += 1
        self.record_load(load)
        # NOTE: streams may outlive their replica's place in the pool; they say nothing about its successor.
        if not self.is_broken.is_set():
            self._breaker.record_success()

    def record_refusal(self, retry_after_s: float) -> None:
        """Record that the replica refused a sequence.

        It counts as full until one of our sequences there ends, or the delay is over.
        """
        self._full_until_s = self._clock.now() + retry_after_s

    def record_load(self, load: Load) -> None:
        """Record the load that the replica reported."""
        self._num_reports += 1
        self._queued = load.queued
        self.open_sequences = load.sequences
        self._others = max(0, load.sequences + load.queued - self.in_flight)

    async def is_healthy(self, timeout_s: float = _HANDSHAKE_TIMEOUT_S, is_leaving: bool = False) -> bool:
        """Probe the replica; return False if it is gone, serves another model, or answers nothing at all.

        A replica that misses a probe but answered a stream meanwhile is healthy. Of one that `is_leaving` any
        answer will do, a refusal too: a process that ends takes no new calls and lets its sequences finish.
        """
        for _ in range(_MAX_FAILED_PROBES):
            num_reports = self._num_reports
            try:
                info, load = await handshake(self.channel, self.endpoint, timeout_s)
            except ProbeTimeout:
                if self._num_reports > num_reports:
                    return True
            except NotReady:
                return is_leaving
            else:
                self.record_load(load)
                return is_leaving or info == self.info
        return False


class ProbeTimeout(NotReady):
    """A replica did not answer in time."""


async def handshake(
    channel: grpc.aio.Channel, endpoint: Endpoint, timeout_s: float = _HANDSHAKE_TIMEOUT_S
) -> tuple[ModelInfo, Load]:
    """Ask an endpoint for its model and load.

    Raise ProbeTimeout without an answer in time, NotReady if it cannot be reached or its answer is invalid.
    """
    stub = TargetStub(channel) if endpoint.role is Role.TARGET else DrafterStub(channel)
    try:
        answer = await stub.Info(common_pb2.InfoRequest(), timeout=timeout_s)
        if answer is None:  # gRPC's way to say that it cannot be decoded
            raise NotReady(f"{endpoint.address} gave an answer that cannot be read")
        info, load = info_from_wire(answer)
    except grpc.aio.AioRpcError as error:
        is_timeout = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        raise (ProbeTimeout if is_timeout else NotReady)(
            str(from_rpc_error(error, endpoint.address))
        ) from None
    except asyncio.CancelledError:
        if is_task_cancelled():
            raise
        raise NotReady("its channel was closed") from None
    except (ValueError, InvalidRequest) as error:
        raise NotReady(f"its Info is invalid: {error}") from None
    return info, load
