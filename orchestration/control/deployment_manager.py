"""Deployment manager: run the control loop of one deployment. Independent of Ray and gRPC."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flyserve.core.clock import Clock
from flyserve.core.errors import ConfigError, NotReady, describe
from flyserve.core.messages import Role
from orchestration.control import status
from orchestration.control.autoscaler import Autoscaler
from orchestration.control.cluster_state import ClusterState
from orchestration.control.executor import Executor
from orchestration.control.fleet import Fleet
from orchestration.control.instances import Instance, Node, Phase
from orchestration.control.placement import NodeList, choose_members, choose_node, require_room
from orchestration.control.reconciler import Start, apply, decide
from orchestration.control.registry import Registry
from orchestration.control.state_store import DocumentStorage, PersistedState, StateStore
from orchestration.deployment.diff import Change, Report, changes, require_possible, require_same_tokens
from orchestration.deployment.file import Deployment, RolloutConfig
from orchestration.deployment.plan import ReplicaSpec, plan
from orchestration.deployment.scaling import keeping_replicas, replicas_of, with_replicas
from orchestration.machine.settling import unused_on_cluster
from services.common.config import parse
from services.common.security.identity import Identity

logger = logging.getLogger(__name__)

_TICK_S = 0.25
_GCS_UNAVAILABLE = "Ray's GCS does not answer: replicas keep running, none is started or stopped"


class DeploymentManager:
    """The control loop of one deployment; for one event loop.

    Every decision is persisted before it is executed, and executed from the persisted state: so the process
    may be killed at any time.
    """

    def __init__(
        self,
        name: str,
        fleet: Fleet,
        storage: DocumentStorage,
        clock: Clock,
        actors: Mapping[Role, str],
        identity: Identity | None = None,
    ) -> None:
        """Start nothing yet; without an `identity`, calls to instances are in plaintext."""
        self.name = name
        self.registry = Registry(clock=clock)
        self._fleet, self._clock, self._actors, self._identity = fleet, clock, actors, identity
        self._store = StateStore(storage)
        self._state = PersistedState()
        self._cluster = ClusterState()
        self._autoscaler = Autoscaler()
        self._nodes = NodeList(fleet.nodes, clock)
        self._leaving_nodes: set[str] = set()
        self._notes: dict[str, str] = {}
        self._wake = asyncio.Event()
        self._has_ended = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._executor: Executor

    @property
    def deployment(self) -> Deployment | None:
        """The desired deployment, with the numbers of replicas of now; None before one is applied."""
        return self._state.deployment

    async def restore(self) -> PersistedState:
        """Restore and return the state of an earlier controller; routers get the same endpoints as before."""
        state = await self._store.load()
        now = self._clock.now()
        instances = [replace(instance, since=now) for instance in state.instances]
        histories = {name: replace(history, retry_at=now) for name, history in state.histories.items()}
        self._cluster = ClusterState(instances, histories)
        self._state = replace(state, starts=state.starts + 1)
        self.registry = Registry(state.snapshot, self._clock)
        self.registry.publish(self._cluster.endpoints())
        return self._state

    async def start(self, registry: str) -> None:
        """Adopt the running instances and start to reconcile; `registry` is the registry's host:port."""
        before = self._state.registry
        if before and before != registry:
            self._notes["registry"] = (
                f"the registry has moved from {before} to {registry}: restart routers with that address"
            )
        self._state = replace(self._state, registry=registry)
        self._executor = Executor(
            self._fleet, self._cluster, self._clock, self._wake.set, registry, self._identity
        )
        await self._executor.adopt()
        self._loop = asyncio.create_task(self._run(), name="reconcile")

    async def stop(self) -> None:
        """Stop the loop; instances go on."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
            await self._executor.close()

    async def apply(self, deployment: Deployment, source: str, replaces: bool = False) -> Report:
        """Make a deployment with absolute model folders the desired one.

        `source` is the file that it was read from, to show to people. With `replaces` it may replace a
        deployment of this name that was read from another file.

        Raises:
            ConfigError: It cannot be applied in place, or another one has this name.
            NotReady: The deployment of this name is being ended.
        """
        before, in_file = self._state.deployment, replicas_of(deployment)
        if before is None:
            self._set_desired(deployment, source=source, replicas_in_file=in_file)
            return Report(is_new=True)
        self._require_not_ending()
        if source != self._state.source and not replaces:
            raise ConfigError(
                f"name: {self.name} already runs from {self._state.source}, and this is {source}:"
                " give it another name (key name), or replace the running one with --replace"
            )
        await asyncio.to_thread(require_same_tokens, before, deployment)
        # NOTE: read again: autoscaling may have changed it meanwhile.
        before = self._require_not_ending()
        deployment = keeping_replicas(deployment, before, self._state.replicas_in_file)
        found = changes(before, deployment)
        require_possible(found)
        self._set_desired(deployment, source=source, replicas_in_file=in_file)
        return Report(False, found)

    async def scale(self, replicas: Mapping[Role, int], is_forced: bool = False) -> tuple[Change, ...]:
        """Change the desired number of replicas of some tiers; autoscaling goes on from there.

        Raises:
            ConfigError: There is no such tier, a number is outside the limits, or, unless it `is_forced`, the
                nodes have no room for that many. A tier with autoscaling may ask for nodes to be added.
        """
        self._require_not_ending()
        await self._nodes.refresh(at_once=not self._nodes.nodes)
        # NOTE: read after the nodes: autoscaling may have changed it meanwhile.
        before = self._require_not_ending()
        after = with_replicas(before, replicas)
        if not is_forced:
            instances = self._cluster.instances.values()
            members = choose_members(after, self._state.members, instances)
            specs = plan(after, self._state.registry, self._actors, members)
            require_room(before, after, specs, self._lasting_nodes(), instances)
        self._set_desired(after)
        return changes(before, after)

    async def drain(self, replica: str, at_once: bool) -> None:
        """Replace a replica, on another node if possible; it drains once its successor serves, or at once.

        Raises:
            ConfigError: There is no such replica.
        """
        self._require_not_ending()
        known = {key.replica for key in self._cluster.instances}
        if replica not in known:
            raise ConfigError(f"{replica}: {self.name} has no such replica, but {', '.join(sorted(known))}")
        for key in [key for key in self._cluster.instances if key.replica == replica]:
            self._cluster.mark_for_replacement(key)
            if at_once and self._cluster.instances[key].phase is Phase.READY:
                self._cluster.mark_draining(key, self._clock.now())
        self._wake.set()

    async def leave_node(self, node: str, is_urgent: bool) -> tuple[str, ...]:
        """Move all replicas off a node that is about to end; return the instances that are still there.

        They drain at once, and none is placed there again. The only replica of its tier that serves is the
        exception: it serves on until its successor does, unless the matter `is_urgent`. Call it again to
        follow the progress.
        """
        self._leaving_nodes.add(node)
        instances = self._cluster.instances
        there = {key: instance for key, instance in instances.items() if instance.node == node}
        for key, instance in there.items():
            if not instance.is_marked_for_replacement:
                self._cluster.mark_for_replacement(key)
            if instance.phase is Phase.READY and (is_urgent or self._has_peer(instance)):
                self._cluster.mark_draining(key, self._clock.now())
        self._wake.set()
        return tuple(str(key) for key in there)

    def _has_peer(self, instance: Instance) -> bool:
        """Return True if another instance of the tier serves on a node that stays."""
        return any(
            other.role is instance.role
            and other.phase is Phase.READY
            and other.node not in self._leaving_nodes
            for other in self._cluster.instances.values()
        )

    async def down(self, grace_s: float) -> None:
        """Drain and stop every replica, then delete the persisted state; may be called again meanwhile.

        Raises:
            ConfigError: `grace_s` is beyond the limits of `rollout.drain_s`.
        """
        if (deployment := self._state.deployment) is not None:
            rollout = parse(RolloutConfig, {"surge": deployment.rollout.surge, "drain_s": grace_s}, "grace_s")
            ending = deployment.model_copy(update={"rollout": rollout})
            self._state = replace(self._state, deployment=ending, is_ending=True)
            self._wake.set()
            await self._has_ended.wait()
        await self.stop()
        await self._store.delete()

    async def status(self) -> status.DeploymentStatus:
        """Return the status of the deployment, its tiers and its replicas."""
        desired, names = self._desired(), {node.id: node.name for node in self._nodes.nodes}
        deployment = self._state.deployment
        scaled = {} if deployment is None else self._autoscaler.status(deployment)
        draft_length = 0 if deployment is None else deployment.speculation.draft_length.max
        rows = status.replicas(desired, self._cluster, self._clock.now(), names, self.registry.alarms())
        return status.DeploymentStatus(
            name=self.name,
            registry=self._state.registry,
            controller_starts=self._state.starts,
            tiers=status.tiers(desired, rows, scaled),
            replicas=rows,
            notes=(*self._notes.values(), *self._unused()),
            speculation=status.speculation(self._cluster.instances.values(), draft_length),
        )

    def _unused(self) -> Iterator[str]:
        """Yield a line for what the deployment leaves unused of the nodes that are known."""
        gpus = [node.resources.get("GPU", 0.0) for node in self._nodes.nodes]
        if self._state.deployment is not None and gpus:
            yield from unused_on_cluster(self._state.deployment, gpus)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._reconcile()
            except Exception as error:
                # NOTE: whatever the error is, the next round may succeed, and replicas must stay supervised.
                logger.exception("reconciling failed")
                self._notes["fault"] = f"reconciling failed and is retried: {describe(error)}"
            else:
                self._notes.pop("fault", None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._wake.wait()

    async def _reconcile(self) -> None:
        """Run one round: decide, publish, persist, execute."""
        now = self._clock.now()
        self._autoscale(now)
        desired = self._desired()
        self._cluster.clear_faults(spec.replica for spec in desired)
        actions = decide(desired, self._cluster, now, self._state.rollout)
        await self._nodes.refresh(at_once=any(isinstance(action, Start) for action in actions))
        for action in actions:
            instance = apply(action, self._cluster, now)
            if isinstance(action, Start) and instance is not None:
                self._place(instance)
        self.registry.publish(self._cluster.endpoints())
        if await self._is_persisted():
            self._executor.follow(self._state.rollout.drain_s)
            if self._state.is_ending and not self._cluster.instances and self._executor.is_idle:
                self._has_ended.set()

    def _autoscale(self, now: float) -> None:
        deployment = self._state.deployment
        if deployment is not None and not self._state.is_ending:
            instances, waiting = self._cluster.instances.values(), self.registry.waiting()
            numbers = self._autoscaler.update(deployment, instances, waiting, now)
            if numbers:
                self._set_desired(with_replicas(deployment, numbers))

    def _place(self, instance: Instance) -> None:
        others = [other for other in self._cluster.instances.values() if other.key != instance.key]
        avoid = self._cluster.history(instance.spec.replica).avoid
        if (node := choose_node(instance.spec, self._lasting_nodes(), others, avoid)) is not None:
            self._cluster.record(instance.key, node=node.id)

    def _lasting_nodes(self) -> Sequence[Node]:
        return [node for node in self._nodes.nodes if node.id not in self._leaving_nodes]

    async def _is_persisted(self) -> bool:
        state = self._state.observing(self._cluster, self.registry.snapshot.generation)
        if await self._store.save(state):
            self._notes.pop("gcs", None)
            return True
        self._notes["gcs"] = _GCS_UNAVAILABLE
        return False

    def _set_desired(self, deployment: Deployment, **others: Any) -> None:
        """Set the desired deployment, and other fields of the state with it."""
        members = choose_members(deployment, self._state.members, self._cluster.instances.values())
        self._state = replace(self._state, deployment=deployment, members=members, **others)
        self._wake.set()

    def _desired(self) -> tuple[ReplicaSpec, ...]:
        deployment = self._state.deployment
        if deployment is None or self._state.is_ending:
            return ()
        return plan(deployment, self._state.registry, self._actors, self._state.members)

    def _require_not_ending(self) -> Deployment:
        deployment = self._state.deployment
        if deployment is None or self._state.is_ending:
            raise NotReady(f"{self.name} is being ended: apply it again after flyserve down has returned")
        return deployment
