"""Directory of replicas: watch endpoints, do the handshake, probe health, reject pairs that do not match."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing, suppress

import grpc

from flyserve.core.break_even import can_pay
from flyserve.core.clock import Clock
from flyserve.core.endpoints import Endpoint, Snapshot
from flyserve.core.errors import ConfigError, NotReady
from flyserve.core.messages import ModelInfo, Role
from router.policies import create_policy
from router.policies.request_key import RequestKey
from router.replicas.breaker import Breaker
from router.replicas.compatibility import engine_name, incompatibility, misfits
from router.replicas.drafters import Assignment, DrafterPool
from router.replicas.pools import Accepts, ReplicaPool, any_replica, roomiest
from router.replicas.replica import ProbeConfig, Replica, handshake
from services.common.channel import open_channel
from services.common.endpoint_sources import EndpointSource
from services.common.security.identity import Identity, certificate_name

logger = logging.getLogger(__name__)


class ReplicaDirectory:
    """All replicas, by tier.

    Attributes:
        targets: Targets that may get new sequences.
        drafters: Drafters that may get new sequences, each for targets with the same token map.
        target_fault: Returns the reason why a target cannot be used; empty if it can.
    """

    def __init__(
        self,
        source: EndpointSource,
        balancing: str,
        clock: Clock,
        probing: ProbeConfig | None = None,
        identity: Identity | None = None,
    ) -> None:
        """Start empty; connections use the `identity`, or plaintext without one."""
        self.targets = ReplicaPool(create_policy(balancing))
        self.drafters = DrafterPool(create_policy(balancing))
        self._pools: dict[Role, ReplicaPool] = {Role.TARGET: self.targets, Role.DRAFTER: self.drafters}
        self.target_fault: Callable[[ModelInfo], str] = lambda _: ""
        self._source = source
        self._probing = probing or ProbeConfig()
        self._clock = clock
        self._identity = identity
        self._connectors: dict[Endpoint, asyncio.Task[None]] = {}
        self._retiring: dict[asyncio.Task[None], Replica] = {}
        self._faults: dict[Endpoint, str] = {}
        self._mixed: dict[Endpoint, str] = {}
        self._tried: dict[Endpoint, asyncio.Event] = {}
        self._watcher: asyncio.Task[None] | None = None

    async def start(self, timeout_s: float, needs_target: bool = True) -> None:
        """Watch the endpoints; return when there is a target and every present endpoint was tried once.

        Without `needs_target` return at once.

        Raises:
            NotReady: There is no target after `timeout_s`.
            ConfigError: A static list pairs a drafter with a target that has another token map, or has
                targets of several engines.
        """
        self._watcher = asyncio.create_task(self._watch())
        if not needs_target:
            return
        if not await self.targets.wait(any_replica, timeout_s):
            faults = "; ".join(f"{e.address}: {fault}" for e, fault in self._faults.items())
            raise NotReady(f"no target within {timeout_s:g} s ({faults or 'no endpoint is registered'})")
        for tried in list(self._tried.values()):
            await tried.wait()
        if self._source.is_static:
            self._reject_incompatible()

    async def close(self) -> None:
        """End every task and close every channel."""
        tasks = [*self._connectors.values(), *([self._watcher] if self._watcher else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for replica in self._retiring.values():
            replica.is_idle.set()
        await asyncio.gather(*self._retiring)

    def drafter_for(
        self, target: Replica, key: RequestKey, accepts: Accepts = any_replica
    ) -> Assignment | None:
        """Return the accepted drafter of the next sequence at this target; None if none has its token map."""
        return self.drafters.assign(
            lambda drafter: incompatibility(target.info, drafter.info) is None and accepts(drafter), key
        )

    @property
    def looks_up(self) -> bool:
        """True if the present drafters look tokens up and compute no model."""
        drafters = self.drafters.replicas
        return bool(drafters) and all(drafter.info.looks_up for drafter in drafters)

    def can_pay(self, target: Replica, draft_length: int) -> bool:
        """Return False if the drafts of no present drafter can pay at this target."""
        drafters = self.drafters.replicas
        return not drafters or any(can_pay(target.info, each.info, draft_length) for each in drafters)

    def paired(self, accepts: Accepts = any_replica) -> tuple[Replica, Replica | None]:
        """Return an accepted target and a drafter for it, to describe the deployment; this picks nothing.

        Raise NotReady if there is no target at present.
        """
        if not (targets := self.targets.ready(accepts)):
            raise NotReady("no target replica is available")
        target = roomiest(targets)
        drafters = self.drafters.ready(lambda drafter: incompatibility(target.info, drafter.info) is None)
        return target, drafters[0] if drafters else None

    def longest_context(self) -> int:
        """Return the most tokens that any present model takes; 0 if none is present, or one has no limit.

        A drafter that maps its vocabulary counts other tokens.
        """
        models = [each.info for pool in self._pools.values() for each in pool.replicas]
        lengths = [model.context_length for model in models if not model.vocabulary_way]
        return max(lengths) if lengths and all(lengths) else 0

    def num_ready(self) -> dict[Role, int]:
        """Return the number of replicas that may get new sequences, by tier."""
        return {role: len(pool.ready(any_replica)) for role, pool in self._pools.items()}

    def places(self) -> int | None:
        """Sequences that this router may have at all ready targets together.

        None if it is unlimited, or if no target is ready.
        """
        places = [target.places for target in self.targets.ready(any_replica)]
        limited = [number for number in places if number is not None]
        return sum(limited) if limited and len(limited) == len(places) else None

    def incompatibilities(self, target: Replica) -> tuple[str, ...]:
        """Return the reasons why present drafters cannot draft for `target`."""
        return tuple(misfits((target,), self.drafters.replicas))

    def no_drafter_reason(self, target: Replica, has_room: Accepts) -> str:
        """Return why `drafter_for` this target returned none for a sequence; `has_room` accepts for it."""
        if reasons := self.incompatibilities(target):
            return "; ".join(reasons)
        drafters = self.drafters.replicas
        if drafters and not any(map(has_room, drafters)):
            longest = roomiest(drafters).info.context_length
            return f"the sequence has reached the drafter's context length of {longest} tokens"
        is_full = any(drafter.is_full for drafter in drafters)
        return "the drafters are full" if is_full else "no drafter is available"

    def _reject_incompatible(self) -> None:
        pairs = misfits(self.targets.replicas, self.drafters.replicas)
        if found := [*self._mixed.values(), *pairs]:
            raise ConfigError("; ".join(found))

    async def _watch(self) -> None:
        async with aclosing(self._source.watch()) as snapshots:
            async for snapshot in snapshots:
                self._apply(snapshot)

    def _apply(self, snapshot: Snapshot) -> None:
        """Connect to new endpoints; drop those that are removed or drain."""
        wanted = {e for e in snapshot.endpoints if not e.draining and e.role is not Role.SUB_DRAFTER}
        for endpoint in self._connectors.keys() - wanted:
            self._connectors.pop(endpoint).cancel()
            self._tried.pop(endpoint).set()
            self._faults.pop(endpoint, None)
            self._mixed.pop(endpoint, None)
        for endpoint in wanted - self._connectors.keys():
            self._tried[endpoint] = asyncio.Event()
            self._connectors[endpoint] = asyncio.create_task(self._keep(endpoint, self._tried[endpoint]))

    async def _keep(self, endpoint: Endpoint, tried: asyncio.Event) -> None:
        """Keep one endpoint in its pool whenever it is healthy, until cancelled."""
        breaker = Breaker(self._clock)
        while True:
            await self._clock.sleep(breaker.wait_s)
            try:
                await self._connect(endpoint, breaker, tried)
            except Exception as error:
                # NOTE: an unforeseen fault must not end the only task that tries this endpoint again.
                logger.exception("%s cannot be used", endpoint.address)
                self._record_fault(endpoint, f"{type(error).__name__}, see the log")
            finally:
                tried.set()
            breaker.record_failure()

    async def _connect(self, endpoint: Endpoint, breaker: Breaker, tried: asyncio.Event) -> None:
        """Use one connection, from the handshake until it fails."""
        async with AsyncExitStack() as stack:
            channel = await stack.enter_async_context(self._open_channel(endpoint))
            try:
                found = await handshake(channel, endpoint)
                replica = Replica(endpoint, channel, *found, breaker, self._clock)
                self._check_target(replica)
            except NotReady as error:
                self._record_fault(endpoint, str(error))
                return
            try:
                self._add(replica)
                tried.set()
                await self._until_broken(replica)
            finally:
                self._pools[endpoint.role].remove(replica)
                self._retire(replica, stack.pop_all())
            logger.warning("%s failed", replica.name)

    def _open_channel(self, endpoint: Endpoint) -> grpc.aio.Channel:
        identity = self._identity
        return open_channel(
            endpoint.address, identity.peer_tls(certificate_name(endpoint.role)) if identity else None
        )

    def _check_target(self, replica: Replica) -> None:
        """Raise NotReady for a target with a fault, or with another engine than the others.

        Results of another engine differ in their rounding.
        """
        endpoint, others = replica.endpoint, self.targets.ready(any_replica)
        if endpoint.role is not Role.TARGET:
            return
        if fault := self.target_fault(replica.info):
            logger.error("%s: %s", replica.name, fault)
            raise NotReady(fault)
        if not others or others[0].info.engine == replica.info.engine:
            return
        self._mixed[endpoint] = (
            f"{replica.name} runs on {engine_name(replica.info)}, {others[0].name} on"
            f" {engine_name(others[0].info)}: all targets must run on the same engine"
        )
        raise NotReady(self._mixed[endpoint])

    def _add(self, replica: Replica) -> None:
        self._pools[replica.endpoint.role].add(replica)
        self._faults.pop(replica.endpoint, None)
        self._mixed.pop(replica.endpoint, None)
        logger.info("%s is ready", replica.name)
        is_target = replica.endpoint.role is Role.TARGET
        targets = (replica,) if is_target else self.targets.replicas
        for fault in misfits(targets, self.drafters.replicas if is_target else (replica,)):
            logger.error("%s", fault)

    async def _until_broken(self, replica: Replica) -> None:
        """Return when the replica is broken, the connection is lost, or a probe fails.

        A stream that fails is a reason for a probe, and no more: the fault may be that of its request.

        The streams of a replica that fails its probes are cancelled at once: on a host that is gone, or a
        connection that only our side still has, they would wait for as long as a step may take.

        NOTE: gRPC re-opens a lost connection by itself, perhaps to another model at the same address. So a
        new handshake comes before the replica is used again.
        """
        signs = [
            asyncio.create_task(replica.is_broken.wait()),
            asyncio.create_task(replica.lost_connection()),
            probes := asyncio.create_task(self._until_probe_fails(replica)),
        ]
        try:
            await asyncio.wait(signs, return_when=asyncio.FIRST_COMPLETED)
            if probes.done():
                probes.result()
                replica.cancel_streams()
        finally:
            replica.is_broken.set()
            for sign in signs:
                sign.cancel()

    async def _until_probe_fails(self, replica: Replica, is_leaving: bool = False) -> None:
        """Probe the replica now and then, and at once when it becomes suspect."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._probing.interval_s):
                    await replica.is_suspect.wait()
            replica.is_suspect.clear()
            if not await replica.is_healthy(self._probing.timeout_s, is_leaving):
                return

    def _retire(self, replica: Replica, stack: AsyncExitStack) -> None:
        """Close a replica's channel as soon as its last stream has ended; cancel them if it falls silent."""

        async def cancel_when_silent() -> None:
            await self._until_probe_fails(replica, is_leaving=True)
            logger.warning("%s answers no more", replica.name)
            replica.cancel_streams()

        async def close_when_idle() -> None:
            probes = asyncio.create_task(cancel_when_silent())
            try:
                await replica.is_idle.wait()
            finally:
                probes.cancel()
            await asyncio.wait((probes,))
            await stack.aclose()

        task = asyncio.create_task(close_when_idle())
        self._retiring[task] = replica
        task.add_done_callback(self._retiring.pop)

    def _record_fault(self, endpoint: Endpoint, fault: str) -> None:
        if self._faults.get(endpoint) != fault:
            logger.warning("%s at %s is not ready: %s", endpoint.role.value, endpoint.address, fault)
        self._faults[endpoint] = fault
