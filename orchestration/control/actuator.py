"""Makes the fleet what the ledger says, and enters in the ledger what it sees of it."""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Protocol

from fly.clock import Clock
from fly.errors import describe
from fly.messages import Load
from orchestration.control.cluster_state import Ledger
from orchestration.control.instances import Instance, Key, Node, Phase
from orchestration.control.supervision import Replica, supervise
from services.common.security.identity import Identity

logger = logging.getLogger(__name__)

_SETTLE_S = 1.0
"""For routers to hear that a replica takes no new sequences, before it rejects them."""
_FAULT_RETRY_S = 1.0


class Fleet(Protocol):
    """Where instances run."""

    async def nodes(self) -> tuple[Node, ...]:
        """The nodes that are up."""

    async def start(self, instance: Instance, registry: str) -> Replica:
        """Starts an instance on its node where that has room, else where there is room, now or later.

        Args:
            instance: What to start.
            registry: host:port of the registry: it must be reachable from there.
        """

    async def adopt(self, instance: Instance) -> Replica | None:
        """An instance that was started before; None where it has ended."""

    async def end_strangers(self, known: Collection[Key]) -> None:
        """Ends every instance that was started before but is not among these."""


class Actuator:
    """Acts on instances, each in tasks of its own; for one event loop."""

    def __init__(
        self,
        fleet: Fleet,
        ledger: Ledger,
        clock: Clock,
        wake: Callable[[], None],
        registry: str,
        identity: Identity | None = None,
    ) -> None:
        """Has done nothing yet.

        Args:
            fleet: Where instances run.
            ledger: What is to be, and what is seen.
            clock: Of the ledger's times.
            wake: Called when something was entered that may want a decision.
            registry: host:port of the registry.
            identity: By which instances are asked how they are; None asks in plaintext.
        """
        self._identity = identity
        self._fleet, self._ledger, self._clock = fleet, ledger, clock
        self._wake, self._registry = wake, registry
        self._replicas: dict[Key, asyncio.Task[Replica]] = {}
        self._supervisions: dict[Key, asyncio.Task[None]] = {}
        self._drains: dict[Key, asyncio.Task[None]] = {}
        self._ends: set[asyncio.Task[None]] = set()

    @property
    def is_idle(self) -> bool:
        """Nothing runs, and nothing is being ended."""
        return not self._supervisions and not self._ends

    async def adopt(self) -> None:
        """Takes over what an earlier controller has started; it is not disturbed."""
        await self._fleet.end_strangers(list(self._ledger.instances))
        for key, instance in list(self._ledger.instances.items()):
            replica = await self._fleet.adopt(instance)
            if replica is not None:
                self._replicas[key] = asyncio.create_task(_already(replica))
                self._follow(key)
            elif instance.phase is not Phase.STARTING:
                self._ledger.lost(key, "it ended while the controller was away", self._clock.now())

    def follow(self, drain_s: float) -> None:
        """Starts what is entered and not there, drains what is to drain, ends what is entered no more."""
        for key in self._supervisions.keys() - self._ledger.instances.keys():
            self._end(key)
        for key, instance in self._ledger.instances.items():
            if key not in self._supervisions and instance.phase is Phase.STARTING:
                self._follow(key)
            if instance.phase is Phase.DRAINING and key not in self._drains:
                self._drains[key] = asyncio.create_task(self._drain(key, drain_s), name=f"drain {key}")

    async def close(self) -> None:
        """Ends every task and nothing else."""
        tasks = [*self._supervisions.values(), *self._drains.values(), *self._ends]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _follow(self, key: Key) -> None:
        self._supervisions[key] = asyncio.create_task(self._supervise(key), name=f"supervise {key}")

    async def _supervise(self, key: Key) -> None:
        instance = self._ledger.instances[key]
        observer = _Observer(key, self._ledger, self._clock, self._wake)
        while True:
            try:
                if key not in self._replicas:
                    start = self._fleet.start(instance, self._registry)
                    self._replicas[key] = asyncio.create_task(start, name=f"start {key}")
                # NOTE: shielded: what has begun to start must be known, to be ended.
                replica = await asyncio.shield(self._replicas[key])
                await supervise(replica, instance.role, observer, instance.address, self._identity)
            except Exception as error:
                # NOTE: a library's own fault must not leave an instance unwatched.
                logger.exception("supervising %s failed", key)
                observer.waits(describe(error))
                if self._replicas[key].exception() is not None:
                    del self._replicas[key]
                await asyncio.sleep(_FAULT_RETRY_S)
            else:
                return

    async def _drain(self, key: Key, drain_s: float) -> None:
        if key in self._replicas:
            settle_s = min(_SETTLE_S, drain_s)
            await self._clock.sleep(settle_s)
            # NOTE: a supervisor's stream would hold the drain up.
            self._supervisions[key].cancel()
            await (await self._replicas[key]).drain(drain_s - settle_s)
        self._ledger.lost(key, "", self._clock.now())
        self._wake()

    def _end(self, key: Key) -> None:
        self._supervisions.pop(key).cancel()
        if (drain := self._drains.pop(key, None)) is not None:
            drain.cancel()
        if (start := self._replicas.pop(key, None)) is not None:
            logger.info("%s is ended", key)
            self._run(_ended(start), f"end {key}")

    def _run(self, act: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(act, name=name)
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)
        task.add_done_callback(lambda task: self._wake())


async def _already(replica: Replica) -> Replica:
    return replica


async def _ended(start: "asyncio.Task[Replica]") -> None:
    """Ends what was started, or is being started."""
    await (await start).end()


class _Observer:
    """Enters what is seen of one instance."""

    def __init__(self, key: Key, ledger: Ledger, clock: Clock, wake: Callable[[], None]) -> None:
        self._key, self._ledger, self._clock, self._wake = key, ledger, clock, wake

    def placed(self, node: str) -> None:
        self._ledger.placed(self._key, node)
        self._ledger.waits(self._key, "")

    def waits(self, reason: str) -> None:
        self._ledger.waits(self._key, reason)

    def ready(self, address: str) -> None:
        before = self._ledger.instances.get(self._key)
        self._ledger.ready(self._key, address, self._clock.now())
        if before is not None and before.phase is not Phase.READY:
            self._wake()

    def loaded(self, load: Load) -> None:
        self._ledger.loaded(self._key, load)

    def unreachable(self) -> None:
        self._ledger.unreachable(self._key, self._clock.now())
        self._wake()

    def lost(self, fault: str, is_rejection: bool) -> None:
        logger.warning("%s is lost: %s", self._key, fault)
        self._ledger.lost(self._key, fault, self._clock.now(), is_rejection)
        self._wake()
