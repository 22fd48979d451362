"""Executor: start, drain and stop instances as the cluster state says; record what is observed of them."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import NoReturn

from flyserve.core.clock import Clock
from flyserve.core.errors import describe
from flyserve.core.messages import Load, ModelInfo
from orchestration.control.cluster_state import ClusterState
from orchestration.control.fleet import (
    Fleet,
    InstanceHandle,
    InstanceLost,
    InstanceRejected,
    InstanceUnavailable,
)
from orchestration.control.instances import Instance, InstanceKey, Phase
from orchestration.control.load_stream import load_stream
from services.common.security.identity import Identity

logger = logging.getLogger(__name__)

_SETTLE_S = 1.0
"""Time for the routers to receive that a replica is draining, before it rejects new sequences."""
_FAULT_RETRY_S = 1.0
_POLL_S = 0.1


class Executor:
    """Acts on each instance in tasks of its own; for one event loop."""

    def __init__(
        self,
        fleet: Fleet,
        cluster: ClusterState,
        clock: Clock,
        wake: Callable[[], None],
        registry: str,
        identity: Identity | None = None,
    ) -> None:
        """Start nothing yet; without an `identity`, calls to instances are in plaintext.

        `wake` is called when an event may require a decision; `clock` is that of the cluster state's times.
        """
        self._fleet, self._cluster, self._clock = fleet, cluster, clock
        self._wake, self._registry, self._identity = wake, registry, identity
        self._handles: dict[InstanceKey, asyncio.Future[InstanceHandle]] = {}
        self._supervisors: dict[InstanceKey, asyncio.Task[None]] = {}
        self._drains: dict[InstanceKey, asyncio.Task[None]] = {}
        self._stops: set[asyncio.Task[None]] = set()

    @property
    def is_idle(self) -> bool:
        """True if no instance runs or is being stopped."""
        return not self._supervisors and not self._stops

    async def adopt(self) -> None:
        """Take over the instances of an earlier controller without disturbing them."""
        await self._fleet.stop_orphans(list(self._cluster.instances))
        for key, instance in list(self._cluster.instances.items()):
            handle = await self._fleet.adopt(instance)
            if handle is not None:
                self._handles[key] = asyncio.get_running_loop().create_future()
                self._handles[key].set_result(handle)
                self._supervise_in_task(key)
            elif instance.phase is not Phase.STARTING:
                fault = "it ended while no controller was running"
                self._cluster.mark_lost(key, fault, self._clock.now())

    def follow(self, drain_s: float) -> None:
        """Start, drain and stop instances so that they match the cluster state."""
        for key in self._supervisors.keys() - self._cluster.instances.keys():
            self._stop(key)
        for key, instance in self._cluster.instances.items():
            if key not in self._supervisors and instance.phase is Phase.STARTING:
                self._supervise_in_task(key)
            if instance.phase is Phase.DRAINING and key not in self._drains:
                self._drains[key] = asyncio.create_task(self._drain(key, drain_s), name=f"drain {key}")

    async def close(self) -> None:
        """Cancel every task; instances go on."""
        tasks = [*self._supervisors.values(), *self._drains.values(), *self._stops]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _supervise_in_task(self, key: InstanceKey) -> None:
        self._supervisors[key] = asyncio.create_task(self._supervise(key), name=f"supervise {key}")

    async def _supervise(self, key: InstanceKey) -> None:
        instance = self._cluster.instances[key]
        while True:
            try:
                if key not in self._handles:
                    start = self._fleet.start(instance, self._registry)
                    self._handles[key] = asyncio.create_task(start, name=f"start {key}")
                # NOTE: shielded: without its handle, an instance that has begun to start cannot be stopped.
                handle = await asyncio.shield(self._handles[key])
                await self._observe(instance, handle)
            except InstanceLost as loss:
                logger.warning("%s is lost: %s", key, loss)
                is_rejection = isinstance(loss, InstanceRejected)
                self._cluster.mark_lost(key, str(loss), self._clock.now(), is_rejection)
                self._wake()
                return
            except Exception as error:
                # NOTE: a fault in a library must not leave an instance unsupervised.
                logger.exception("supervising %s failed", key)
                self._cluster.record(key, waiting_for=describe(error))
                if self._handles[key].exception() is not None:
                    del self._handles[key]
                await asyncio.sleep(_FAULT_RETRY_S)

    async def _observe(self, instance: Instance, handle: InstanceHandle) -> NoReturn:
        """Record the node, the health and the load of an instance, at `instance.address` if already known.

        Raises:
            InstanceLost: It has ended or cannot be started.
        """
        key, address = instance.key, instance.address
        while True:
            if address:
                async with aclosing(load_stream(instance.role, address, self._identity)) as reports:
                    async for info, load in reports:
                        self._record_report(key, address, info, load)
                self._cluster.mark_unreachable(key, self._clock.now())
                self._wake()
                await asyncio.sleep(_POLL_S)
            try:
                self._cluster.record(key, node=await handle.node(), waiting_for="")
                address = await handle.address()
            except InstanceUnavailable as unavailable:
                self._cluster.record(key, waiting_for=str(unavailable))
                await asyncio.sleep(_POLL_S)

    def _record_report(self, key: InstanceKey, address: str, info: ModelInfo | None, load: Load) -> None:
        before = self._cluster.instances.get(key)
        self._cluster.mark_ready(key, address, self._clock.now())
        self._cluster.record(key, load=load, info=info)
        if before is not None and before.phase is not Phase.READY:
            self._wake()

    async def _drain(self, key: InstanceKey, drain_s: float) -> None:
        if key in self._handles:
            settle_s = min(_SETTLE_S, drain_s)
            await self._clock.sleep(settle_s)
            # NOTE: the drain would wait for the supervisor's health stream.
            self._supervisors[key].cancel()
            await (await self._handles[key]).drain(drain_s - settle_s)
        self._cluster.mark_lost(key, "", self._clock.now())
        self._wake()

    def _stop(self, key: InstanceKey) -> None:
        self._supervisors.pop(key).cancel()
        if (drain := self._drains.pop(key, None)) is not None:
            drain.cancel()
        if (start := self._handles.pop(key, None)) is not None:
            logger.info("stopping %s", key)
            task = asyncio.create_task(_stop_started(key, start), name=f"stop {key}")
            self._stops.add(task)
            task.add_done_callback(self._stops.discard)
            task.add_done_callback(lambda task: self._wake())


async def _stop_started(key: InstanceKey, start: "asyncio.Future[InstanceHandle]") -> None:
    """Stop an instance that was started or is being started; again after an error, until it is stopped.

    NOTE: Ray can end no process while its GCS does not answer, and a process that is left keeps its GPUs.
    """
    handle = await start
    while True:
        try:
            await handle.stop()
        except Exception:
            logger.exception("stopping %s failed", key)
            await asyncio.sleep(_FAULT_RETRY_S)
        else:
            return
