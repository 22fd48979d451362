"""Reconciler: compare desired and actual replicas; decide which to start, drain and stop now. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flyserve.core.messages import Role
from orchestration.control.cluster_state import ClusterState
from orchestration.control.instances import Instance, InstanceKey, Phase
from orchestration.control.precedence import deferred
from orchestration.deployment.file import RolloutConfig
from orchestration.deployment.plan import ReplicaSpec

UNREACHABLE_S = 5.0
"""An instance that has not answered for this long is stopped, and its replica restarted."""
_DRAIN_MARGIN_S = 10.0
"""An instance that still drains this long after its drain timeout is stopped."""
NO_ROOM_S = 600.0
"""A successor without room for this long gets that of its predecessor, if others of the tier serve."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start the next instance of a replica."""

    spec: ReplicaSpec


@dataclass(frozen=True, slots=True)
class Drain:
    """Accept no new sequences, finish the running ones, then stop."""

    key: InstanceKey


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the processes of an instance and remove it.

    Attributes:
        fault: The reason, if this counts as a failure of the replica; else empty.
    """

    key: InstanceKey
    fault: str = ""


Action = Start | Drain | Stop


def decide(
    desired: Sequence[ReplicaSpec], cluster: ClusterState, now: float, rollout: RolloutConfig
) -> list[Action]:
    """Return the actions that bring the instances closer to the desired replicas; none if they match.

    To replace a replica whose spec has changed, another instance is started next to it; the old one drains
    once the new one serves. Each tier has at most `rollout.surge` such extra instances: second instances of a
    replica, or instances of a replica that is no longer desired. Without a surge a replica drains first, one
    at a time, and so does one of several whose successor has found no room for long. Starts that wait for
    room are withdrawn while a lost replica needs that room (`deferred`).
    """
    waiting = deferred(desired, cluster, now).keys()
    tiers = [_Tier(role, desired, cluster, now, rollout, waiting) for role in Role]
    return [action for tier in tiers for action in tier.actions()]


def apply(action: Action, cluster: ClusterState, now: float) -> Instance | None:
    """Record an action in the cluster state; return its instance, None if it no longer exists."""
    match action:
        case Start(spec):
            return cluster.add(spec, now)
        case Drain(key):
            cluster.mark_draining(key, now)
            return cluster.instances.get(key)
        case Stop(key, fault):
            if fault:
                cluster.mark_lost(key, fault, now)
            instance = cluster.instances.get(key)
            cluster.remove(key)
            return instance


class _Tier:
    """One tier at one time."""

    def __init__(
        self,
        role: Role,
        desired: Sequence[ReplicaSpec],
        cluster: ClusterState,
        now: float,
        rollout: RolloutConfig,
        deferred: Collection[str],
    ) -> None:
        self._desired: Mapping[str, ReplicaSpec] = {
            spec.replica: spec for spec in desired if spec.role is role
        }
        self._instances = [i for _, i in sorted(cluster.instances.items()) if i.role is role]
        self._by_replica: dict[str, list[Instance]] = {}
        for instance in self._instances:
            self._by_replica.setdefault(instance.key.replica, []).append(instance)
        self._cluster, self._now, self._rollout, self._deferred = cluster, now, rollout, deferred
        self._is_replacing_in_place = False
        self._surge_left = rollout.surge - self._num_extra()

    def actions(self) -> Iterator[Action]:
        yield from self._stop_unusable()
        for replica in sorted(self._by_replica.keys() - self._desired.keys()):
            yield from map(_drain_or_stop, self._usable(replica))
        for replica, spec in self._desired.items():
            yield from self._reconcile(replica, spec)

    def _stop_unusable(self) -> Iterator[Action]:
        """Stop instances that are lost, unreachable or draining for too long, or deferred without room."""
        for instance in self._instances:
            phase, waited_s = instance.phase, self._now - instance.since
            has_no_room = phase is Phase.STARTING and bool(instance.waiting_for)
            is_withdrawn = has_no_room and instance.key.replica in self._deferred
            is_late = phase is Phase.DRAINING and waited_s >= self._rollout.drain_s + _DRAIN_MARGIN_S
            if phase is Phase.LOST or is_late or is_withdrawn:
                yield Stop(instance.key)
            elif phase is Phase.UNREACHABLE and waited_s >= UNREACHABLE_S:
                yield Stop(instance.key, f"it did not answer for {UNREACHABLE_S:g} s")

    def _reconcile(self, replica: str, spec: ReplicaSpec) -> Iterator[Action]:
        """Reconcile one desired replica."""
        usable = self._usable(replica)
        current = [i for i in usable if i.spec == spec and not i.is_marked_for_replacement]
        outdated = [i for i in usable if i not in current]
        if any(i.phase is Phase.READY for i in current):
            yield from map(_drain_or_stop, outdated)
            return
        spare = [i for i in outdated if i.phase is Phase.READY][:-1]
        yield from (_drain_or_stop(i) for i in outdated if i.phase is Phase.STARTING or i in spare)
        if outdated and self._can_replace_in_place(replica, current):
            self._is_replacing_in_place = True
            yield from (_drain_or_stop(i) for i in outdated if i.phase is not Phase.STARTING)
        if not current and self._may_start(replica):
            yield Start(spec)

    def _may_start(self, replica: str) -> bool:
        """Check precedence, retry delay and surge; a second instance of a replica uses up surge."""
        if replica in self._deferred or self._now < self._cluster.history(replica).retry_at:
            return False
        if not self._present(replica):
            return True
        self._surge_left -= 1
        return self._surge_left >= 0

    def _num_extra(self) -> int:
        """Return the number of second instances of a replica and of instances that are no longer desired."""
        numbers = ((replica, len(self._present(replica))) for replica in self._by_replica)
        return sum(number - (replica in self._desired) for replica, number in numbers if number)

    def _can_replace_in_place(self, replica: str, current: Sequence[Instance]) -> bool:
        """Check that a replica may drain before its successor serves, which takes its room at once.

        All other replicas serve, no other replacement is going on, and there is no surge, or no room for it.
        """
        serving = {i.key.replica for i in self._instances if i.phase is Phase.READY}
        others = [i for i in self._instances if i.key.replica != replica and not _has_no_room(i)]
        is_whole = self._desired.keys() - {replica} <= serving and all(i.phase is Phase.READY for i in others)
        waits_for_long = any(_has_no_room(i) and self._now - i.since >= NO_ROOM_S for i in current)
        is_allowed = self._rollout.surge == 0 or (waits_for_long and len(self._desired) > 1)
        return is_allowed and is_whole and not self._is_replacing_in_place

    def _usable(self, replica: str) -> list[Instance]:
        """Return the instances of a replica that serve or may serve later."""
        return [i for i in self._present(replica) if i.phase is not Phase.DRAINING]

    def _present(self, replica: str) -> list[Instance]:
        """Return the instances of a replica that take room."""
        return [i for i in self._by_replica.get(replica, ()) if i.phase is not Phase.LOST]


def _has_no_room(instance: Instance) -> bool:
    """Check that an instance waits for room, and that none was known on any node when it was started."""
    return instance.phase is Phase.STARTING and bool(instance.waiting_for) and not instance.node


def _drain_or_stop(instance: Instance) -> Action:
    return Drain(instance.key) if instance.phase is Phase.READY else Stop(instance.key)
