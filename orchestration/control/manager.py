"""Keeps one deployment as it is desired: observes, decides, writes down, acts. Knows neither Ray nor gRPC."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import replace

from fly.clock import Clock
from fly.errors import ConfigError, NotReady, describe
from fly.messages import Role
from orchestration.control import status
from orchestration.control.actuator import Actuator, Fleet
from orchestration.control.autoscalers import Autoscalers
from orchestration.control.cluster_state import Ledger
from orchestration.control.instances import Instance, Node, Phase
from orchestration.control.journal import Journal
from orchestration.control.placement import choose_node
from orchestration.control.reconciler import Start, apply, decide
from orchestration.control.registry import Registry
from orchestration.control.state_store import Record, Store, from_document, lasting, to_document
from orchestration.deployment.diff import Change, Report, changes, require_possible
from orchestration.deployment.file import Deployment, RolloutConfig
from orchestration.deployment.plan import ReplicaSpec, plan
from orchestration.deployment.scaling import choose_members, keeping_replicas, with_replicas
from orchestration.deployment.token_maps import require_same_tokens
from services.common.security.identity import Identity

logger = logging.getLogger(__name__)

_TICK_S = 0.25
_NODES_S = 2.0
"""How often the nodes are looked for while nothing is started."""
_LOOK_S = 2.0
_AWAY = "Ray's GCS does not answer: what runs goes on, nothing is started or ended until it is back"


class Manager:
    """One deployment; for one event loop.

    What is decided is written down before it is done, and done from what is written down: so it may be killed
    at any time.
    """

    def __init__(
        self,
        name: str,
        fleet: Fleet,
        store: Store,
        clock: Clock,
        actors: Mapping[Role, str],
        identity: Identity | None = None,
    ) -> None:
        """Knows of nothing yet.

        Args:
            name: Of the deployment.
            fleet: Where instances run.
            store: Where it is written down.
            clock: For back-off and time-outs.
            actors: Class of each tier's actor.
            identity: By which instances are asked how they are; None asks in plaintext.
        """
        self.name = name
        self.registry = Registry()
        self._fleet, self._clock, self._actors = fleet, clock, actors
        self._identity = identity
        self._journal = Journal(store)
        self._record = Record()
        self._ledger = Ledger()
        self._autoscalers = Autoscalers()
        self._nodes: tuple[Node, ...] = ()
        self._looked_at = -_NODES_S
        self._look: asyncio.Task[tuple[Node, ...]] | None = None
        self._notes: dict[str, str] = {}
        self._wake = asyncio.Event()
        self._is_gone = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._actuator: Actuator

    async def recall(self) -> Record:
        """What an earlier controller has left; routers are told the same as before."""
        document = await self._journal.read()
        record = from_document(document) if document is not None else Record()
        now = self._clock.now()
        instances = [replace(instance, since=now) for instance in record.instances]
        slots = {name: replace(slot, retry_at=now) for name, slot in record.slots.items()}
        self._ledger = Ledger(instances, slots)
        self._record = replace(record, starts=record.starts + 1)
        self.registry = Registry(record.snapshot)
        self.registry.show(self._ledger.endpoints())
        return self._record

    async def start(self, registry: str) -> None:
        """Adopts what runs, and begins to reconcile; the registry is served at `registry`."""
        before = self._record.registry
        if before and before != registry:
            self._notes["registry"] = (
                f"the registry has moved from {before} to {registry}: start routers again with that address"
            )
        self._record = replace(self._record, registry=registry)
        self._actuator = Actuator(
            self._fleet, self._ledger, self._clock, self._wake.set, registry, self._identity
        )
        await self._actuator.adopt()
        self._loop = asyncio.create_task(self._run(), name="reconcile")

    async def stop(self) -> None:
        """Ends the loop and nothing else: what runs goes on."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
            await self._actuator.close()

    async def apply(self, deployment: Deployment, source: str, replaces: bool = False) -> Report:
        """Makes a deployment the desired one.

        Args:
            deployment: With absolute model folders.
            source: The file that it was read from, for people.
            replaces: Although another file's deployment has this name.

        Raises:
            ConfigError: It cannot be applied in place, or another one has this name.
            NotReady: The deployment of this name is being ended.
        """
        before = self._record.deployment
        if before is None:
            self._desire(deployment, source)
            return Report(is_new=True)
        self._require_lasting()
        if source != self._record.source and not replaces:
            raise ConfigError(
                f"name: {self.name} runs already, as {self._record.source} says, and this is {source}:"
                " give it another name (key name), or replace that one with --replace"
            )
        await asyncio.to_thread(require_same_tokens, before, deployment)
        # NOTE: read again: the load may have scaled it meanwhile.
        before = self._require_lasting()
        deployment = keeping_replicas(deployment, before)
        found = changes(before, deployment)
        require_possible(found)
        self._desire(deployment, source)
        return Report(False, found)

    async def scale(self, replicas: Mapping[Role, int]) -> tuple[Change, ...]:
        """Changes how many replicas of some tiers are desired; an autoscaled tier goes on from there.

        Raises:
            ConfigError: There is no such tier, or a number lies beyond the limits.
        """
        before = self._require_lasting()
        after = with_replicas(before, replicas)
        self._desire(after, self._record.source)
        return changes(before, after)

    async def drain(self, replica: str, at_once: bool) -> None:
        """Replaces a replica by another one, elsewhere where possible; at once, or when that one serves.

        Raises:
            ConfigError: There is no such replica.
        """
        self._require_lasting()
        known = {key.replica for key in self._ledger.instances}
        if replica not in known:
            raise ConfigError(f"{replica}: {self.name} has no such replica, but {', '.join(sorted(known))}")
        for key in [key for key in self._ledger.instances if key.replica == replica]:
            self._ledger.condemn(key)
            if at_once and self._ledger.instances[key].phase is Phase.READY:
                self._ledger.drain(key, self._clock.now())
        self._wake.set()

    async def down(self, grace_s: float) -> None:
        """Drains and ends everything, and leaves no trace."""
        if (deployment := self._record.deployment) is not None:
            rollout = RolloutConfig(surge=deployment.rollout.surge, drain_s=grace_s)
            ending = deployment.model_copy(update={"rollout": rollout})
            self._record = replace(self._record, deployment=ending, is_ending=True)
            self._wake.set()
            await self._is_gone.wait()
        await self.stop()
        await self._journal.delete()

    async def status(self) -> status.DeploymentStatus:
        """Everything there is to know of it."""
        desired, names = self._desired(), {node.id: node.name for node in self._nodes}
        deployment = self._record.deployment
        scaled = {} if deployment is None else self._autoscalers.status(deployment)
        return status.DeploymentStatus(
            name=self.name,
            registry=self._record.registry,
            controller_starts=self._record.starts,
            tiers=status.tiers(desired, self._ledger, scaled),
            replicas=status.replicas(desired, self._ledger, self._clock.now(), names),
            notes=tuple(self._notes.values()),
        )

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._reconcile()
            except Exception as error:
                # NOTE: whatever it is, the next round may do better, and replicas must not be left alone.
                logger.exception("reconciling failed")
                self._notes["fault"] = f"reconciling failed, it is tried again: {describe(error)}"
            else:
                self._notes.pop("fault", None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._wake.wait()

    async def _reconcile(self) -> None:
        """One round: decide, tell, write down, do."""
        now = self._clock.now()
        self._autoscale(now)
        desired = self._desired()
        self._ledger.settle(spec.replica for spec in desired)
        actions = decide(desired, self._ledger, now, self._rollout)
        starts = any(isinstance(action, Start) for action in actions)
        if starts or now - self._looked_at >= _NODES_S:
            await self._look_for_nodes()
        for action in actions:
            instance = apply(action, self._ledger, now)
            if isinstance(action, Start) and instance is not None:
                self._place(instance)
        self.registry.show(self._ledger.endpoints())
        if await self._is_written_down():
            self._actuator.follow(self._rollout.drain_s)
            if self._record.is_ending and not self._ledger.instances and self._actuator.is_idle:
                self._is_gone.set()

    def _autoscale(self, now: float) -> None:
        """Scales as the load asks for."""
        deployment = self._record.deployment
        if deployment is not None and not self._record.is_ending:
            numbers = self._autoscalers.look(deployment, self._ledger.instances.values(), now)
            if numbers:
                self._desire(with_replicas(deployment, numbers), self._record.source)

    def _place(self, instance: Instance) -> None:
        others = [other for other in self._ledger.instances.values() if other.key != instance.key]
        avoid = self._ledger.slot(instance.spec.replica).avoid
        if (node := choose_node(instance.spec, self._nodes, others, avoid)) is not None:
            self._ledger.placed(instance.key, node.id)

    async def _look_for_nodes(self) -> None:
        self._looked_at = self._clock.now()
        if self._look is None:
            self._look = asyncio.create_task(self._fleet.nodes(), name="nodes")
        await asyncio.wait({self._look}, timeout=_LOOK_S)
        if self._look.done():
            look, self._look = self._look, None
            self._nodes = look.result()

    async def _is_written_down(self) -> bool:
        if await self._journal.holds(self._document()):
            self._notes.pop("gcs", None)
            return True
        self._notes["gcs"] = _AWAY
        return False

    def _document(self) -> bytes:
        snapshot, ledger = self.registry.snapshot.generation, self._ledger
        return to_document(lasting(self._record, snapshot, ledger.instances.values(), ledger.slots))

    def _desire(self, deployment: Deployment, source: str) -> None:
        members = choose_members(deployment, self._record.members, self._ledger.instances.values())
        self._record = replace(self._record, deployment=deployment, source=source, members=members)
        self._wake.set()

    def _desired(self) -> tuple[ReplicaSpec, ...]:
        deployment = self._record.deployment
        if deployment is None or self._record.is_ending:
            return ()
        return plan(deployment, self._record.registry, self._actors, self._record.members)

    @property
    def _rollout(self) -> RolloutConfig:
        deployment = self._record.deployment
        return RolloutConfig() if deployment is None else deployment.rollout

    def _require_lasting(self) -> Deployment:
        deployment = self._record.deployment
        if deployment is None or self._record.is_ending:
            raise NotReady(f"{self.name} is being ended: when flyserve down has returned, apply it again")
        return deployment
