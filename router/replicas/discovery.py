"""The replicas behind this router: follows the endpoints, shakes hands, rejects pairs that do not fit."""

import asyncio
import logging
from contextlib import AsyncExitStack, aclosing

import grpc

from fly.clock import Clock
from fly.errors import ConfigError, NotReady
from fly.messages import Endpoint, Role, Snapshot
from router.policies import create_policy
from router.policies.key import RequestKey
from router.replicas.breaker import Breaker
from router.replicas.pairing import mismatch
from router.replicas.pools import Accepts, Probing, Replica, ReplicaPool, any_replica, shake_hands
from services.common.channel import open_channel
from services.common.endpoint_sources import EndpointSource
from services.common.security.identity import Identity, certificate_name

logger = logging.getLogger(__name__)


class Fleet:
    """All replicas, by tier.

    Attributes:
        targets: Targets that may get new sequences.
        drafters: Drafters that may, each with the targets whose tokens it speaks.
    """

    def __init__(
        self,
        source: EndpointSource,
        balancing: str,
        clock: Clock,
        probing: Probing | None = None,
        identity: Identity | None = None,
    ) -> None:
        """Knows none yet; calls them with an `identity`, or in plaintext."""
        self.targets = ReplicaPool(create_policy(balancing))
        self.drafters = ReplicaPool(create_policy(balancing), is_needed=False)
        self._source = source
        self._probing = probing or Probing()
        self._clock = clock
        self._identity = identity
        self._keepers: dict[Endpoint, asyncio.Task[None]] = {}
        self._retiring: dict[asyncio.Task[None], Replica] = {}
        self._faults: dict[Endpoint, str] = {}
        self._tried: dict[Endpoint, asyncio.Event] = {}
        self._follower: asyncio.Task[None] | None = None

    async def start(self, timeout_s: float) -> None:
        """Follows the endpoints; returns when there is a target and every known endpoint was tried once.

        Raises:
            NotReady: There is no target after `timeout_s`.
            ConfigError: A static list pairs a drafter with a target whose tokens it does not speak.
        """
        self._follower = asyncio.create_task(self._follow())
        if not await self.targets.wait(any_replica, timeout_s):
            faults = "; ".join(f"{e.address}: {fault}" for e, fault in self._faults.items())
            raise NotReady(f"no target within {timeout_s:g} s ({faults or 'none is known'})")
        for tried in list(self._tried.values()):
            await tried.wait()
        if self._source.is_static:
            self._reject_misfits()

    async def close(self) -> None:
        """Ends every task and closes every channel."""
        tasks = [*self._keepers.values(), *([self._follower] if self._follower else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for replica in self._retiring.values():
            replica.is_idle.set()
        await asyncio.gather(*self._retiring)

    def drafter_for(self, target: Replica, key: RequestKey) -> Replica | None:
        """The drafter of the next sequence at this target; None where none speaks its tokens."""
        return self.drafters.pick(lambda drafter: mismatch(target.info, drafter.info) is None, key)

    def paired(self, accepts: Accepts = any_replica) -> tuple[Replica, Replica | None]:
        """A target that will do and a drafter for it, to say what is served; picks nothing.

        Raises:
            NotReady: There is no target at present.
        """
        if not (targets := self.targets.ready(accepts)):
            raise NotReady("no target replica is available")
        drafters = self.drafters.ready(lambda drafter: mismatch(targets[0].info, drafter.info) is None)
        return targets[0], drafters[0] if drafters else None

    def num_ready(self) -> dict[Role, int]:
        """Replicas that may get new sequences, by tier."""
        pools = {Role.TARGET: self.targets, Role.DRAFTER: self.drafters}
        return {role: len(pool.ready(any_replica)) for role, pool in pools.items()}

    def misfits(self, target: Replica) -> tuple[str, ...]:
        """Why the drafters that are up cannot draft for `target`."""
        return tuple(
            f"{drafter.name} cannot draft for {target.name}: {reason}"
            for drafter in self.drafters.replicas
            if (reason := mismatch(target.info, drafter.info)) is not None
        )

    def _reject_misfits(self) -> None:
        if faults := [fault for target in self.targets.replicas for fault in self.misfits(target)]:
            raise ConfigError("; ".join(faults))

    async def _follow(self) -> None:
        async with aclosing(self._source.watch()) as snapshots:
            async for snapshot in snapshots:
                self._adopt(snapshot)

    def _adopt(self, snapshot: Snapshot) -> None:
        """Starts to keep what is new, and lets go of what is no longer there or drains."""
        wanted = {e for e in snapshot.endpoints if not e.draining and e.role is not Role.SUB_DRAFTER}
        for endpoint in self._keepers.keys() - wanted:
            self._keepers.pop(endpoint).cancel()
            self._tried.pop(endpoint).set()
            self._faults.pop(endpoint, None)
        for endpoint in wanted - self._keepers.keys():
            self._tried[endpoint] = asyncio.Event()
            self._keepers[endpoint] = asyncio.create_task(self._keep(endpoint, self._tried[endpoint]))

    async def _keep(self, endpoint: Endpoint, tried: asyncio.Event) -> None:
        """Keeps one endpoint in its pool whenever it can serve, until cancelled."""
        breaker = Breaker(self._clock)
        while True:
            await self._clock.sleep(breaker.wait_s)
            await self._serve(endpoint, breaker, tried)
            breaker.failed()

    async def _serve(self, endpoint: Endpoint, breaker: Breaker, tried: asyncio.Event) -> None:
        """One connection, from handshake to failure."""
        async with AsyncExitStack() as held:
            channel = await held.enter_async_context(self._open_channel(endpoint))
            try:
                replica = Replica(endpoint, channel, *await shake_hands(channel, endpoint), breaker)
            except NotReady as error:
                self._note_fault(endpoint, str(error))
                tried.set()
                return
            try:
                self._welcome(replica)
                tried.set()
                await self._until_broken(replica)
            finally:
                self._pool(endpoint.role).remove(replica)
                self._retire(replica, held.pop_all())
            logger.warning("%s failed", replica.name)

    def _open_channel(self, endpoint: Endpoint) -> grpc.aio.Channel:
        identity = self._identity
        return open_channel(
            endpoint.address, identity.peer_tls(certificate_name(endpoint.role)) if identity else None
        )

    def _welcome(self, replica: Replica) -> None:
        self._pool(replica.endpoint.role).add(replica)
        self._faults.pop(replica.endpoint, None)
        logger.info("%s is ready", replica.name)
        for fault in [fault for target in self.targets.replicas for fault in self.misfits(target)]:
            if replica.address in fault:
                logger.error("%s", fault)

    async def _until_broken(self, replica: Replica) -> None:
        """Returns when a stream failed there, its connection is lost, it is silent, or serves another model.

        The streams of a silent one end at once: a host that is gone, or a connection of which only our half
        is left, would keep them waiting for as long as a step may take.

        NOTE: A lost connection comes back by itself, perhaps to another model at the same address: hence a
        new handshake before it is used again.
        """
        probing = self._probing
        signs = [
            asyncio.create_task(replica.is_broken.wait()),
            asyncio.create_task(replica.lost_connection()),
        ]
        try:
            while not any(sign.done() for sign in signs):
                wait = asyncio.wait(signs, timeout=probing.interval_s, return_when=asyncio.FIRST_COMPLETED)
                if not (await wait)[0] and not await replica.still_serves(probing.timeout_s):
                    replica.hang_up()
                    return
        finally:
            replica.is_broken.set()
            for sign in signs:
                sign.cancel()

    def _retire(self, replica: Replica, held: AsyncExitStack) -> None:
        """Closes a replica's channel as soon as its last stream has ended."""

        async def close_when_idle() -> None:
            await replica.is_idle.wait()
            await held.aclose()

        task = asyncio.create_task(close_when_idle())
        self._retiring[task] = replica
        task.add_done_callback(self._retiring.pop)

    def _pool(self, role: Role) -> ReplicaPool:
        return self.targets if role is Role.TARGET else self.drafters

    def _note_fault(self, endpoint: Endpoint, fault: str) -> None:
        if self._faults.get(endpoint) != fault:
            logger.warning("%s at %s is not ready: %s", endpoint.role.value, endpoint.address, fault)
        self._faults[endpoint] = fault
