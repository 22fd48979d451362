"""Desired against actual, replica by replica: what to start, to drain and to end now. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fly.messages import Role
from orchestration.control.cluster_state import Ledger
from orchestration.control.instances import Instance, Key, Phase
from orchestration.deployment.file import RolloutConfig
from orchestration.deployment.plan import ReplicaSpec

UNREACHABLE_S = 5.0
"""Who does not answer for so long is ended and restarted."""
_DRAIN_MARGIN_S = 10.0
"""A drain that has not ended by itself so long after its time is ended."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start the next instance of a replica."""

    spec: ReplicaSpec


@dataclass(frozen=True, slots=True)
class Drain:
    """Take no new sequences, finish the running ones, then end."""

    key: Key


@dataclass(frozen=True, slots=True)
class End:
    """End its processes and forget it.

    Attributes:
        key: Which.
        fault: Why, where that counts as a failure of its replica.
    """

    key: Key
    fault: str = ""


Action = Start | Drain | End


def decide(
    desired: Sequence[ReplicaSpec], ledger: Ledger, now: float, rollout: RolloutConfig
) -> list[Action]:
    """What brings the instances nearer to the desired replicas; nothing where they are there.

    A replica whose spec has changed is replaced: another instance is started beside it, and it drains once
    that one serves. Of a tier, at most `rollout.surge` instances are beside another one of their replica, or
    of a replica that is desired no more; with no surge a replica drains first, one at a time.
    """
    return [action for role in Role for action in _Tier(role, desired, ledger, now, rollout).actions()]


def apply(action: Action, ledger: Ledger, now: float) -> Instance | None:
    """Enters an action in the ledger; the instance that it is about, None where it is not there any more."""
    match action:
        case Start(spec):
            return ledger.start(spec, now)
        case Drain(key):
            ledger.drain(key, now)
            return ledger.instances.get(key)
        case End(key, fault):
            if fault:
                ledger.lost(key, fault, now)
            instance = ledger.instances.get(key)
            ledger.forget(key)
            return instance


class _Tier:
    """One tier at one time."""

    def __init__(
        self, role: Role, desired: Sequence[ReplicaSpec], ledger: Ledger, now: float, rollout: RolloutConfig
    ) -> None:
        self._wanted: Mapping[str, ReplicaSpec] = {
            spec.replica: spec for spec in desired if spec.role is role
        }
        self._instances = [i for _, i in sorted(ledger.instances.items()) if i.role is role]
        self._by_replica: dict[str, list[Instance]] = {}
        for instance in self._instances:
            self._by_replica.setdefault(instance.key.replica, []).append(instance)
        self._ledger, self._now, self._rollout = ledger, now, rollout
        self._has_gap = False
        self._room = rollout.surge - self._num_extra()

    def actions(self) -> Iterator[Action]:
        yield from self._clear_away()
        for replica in sorted(self._by_replica.keys() - self._wanted.keys()):
            yield from map(self._let_go, self._alive(replica))
        for replica, spec in self._wanted.items():
            yield from self._keep(replica, spec)

    def _clear_away(self) -> Iterator[Action]:
        """What will do nothing more of use."""
        for instance in self._instances:
            waited_s = self._now - instance.since
            if instance.phase is Phase.LOST:
                yield End(instance.key)
            elif instance.phase is Phase.UNREACHABLE and waited_s >= UNREACHABLE_S:
                yield End(instance.key, f"it did not answer for {UNREACHABLE_S:g} s")
            elif instance.phase is Phase.DRAINING and waited_s >= self._rollout.drain_s + _DRAIN_MARGIN_S:
                yield End(instance.key)

    def _keep(self, replica: str, spec: ReplicaSpec) -> Iterator[Action]:
        """One desired replica."""
        alive = self._alive(replica)
        fresh = [i for i in alive if i.spec == spec and not i.is_condemned]
        stale = [i for i in alive if i not in fresh]
        if any(i.phase is Phase.READY for i in fresh):
            yield from map(self._let_go, stale)
            return
        spare = [i for i in stale if i.phase is Phase.READY][:-1]
        yield from (self._let_go(i) for i in stale if i.phase is Phase.STARTING or i in spare)
        if stale and self._is_replaced_in_place(replica):
            self._has_gap = True
            yield from (self._let_go(i) for i in stale if i.phase is not Phase.STARTING)
        if not fresh and self._may_start(replica):
            yield Start(spec)

    def _may_start(self, replica: str) -> bool:
        """Whether another instance may start now; one beside another takes room."""
        if self._now < self._ledger.slot(replica).retry_at:
            return False
        if not self._present(replica):
            return True
        self._room -= 1
        return self._room >= 0

    def _num_extra(self) -> int:
        """Instances beside another one of their replica, or of a replica that is desired no more."""
        numbers = ((replica, len(self._present(replica))) for replica in self._by_replica)
        return sum(number - (replica in self._wanted) for replica, number in numbers if number)

    def _is_replaced_in_place(self, replica: str) -> bool:
        """Without a surge: one at a time, while all other replicas serve."""
        serving = {i.key.replica for i in self._instances if i.phase is Phase.READY}
        others = [i for i in self._instances if i.key.replica != replica]
        is_whole = self._wanted.keys() - {replica} <= serving and all(i.phase is Phase.READY for i in others)
        return self._rollout.surge == 0 and not self._has_gap and is_whole

    def _let_go(self, instance: Instance) -> Action:
        return Drain(instance.key) if instance.phase is Phase.READY else End(instance.key)

    def _alive(self, replica: str) -> list[Instance]:
        """Instances of a replica that serve or may come to."""
        return [i for i in self._present(replica) if i.phase is not Phase.DRAINING]

    def _present(self, replica: str) -> list[Instance]:
        """Instances of a replica that take room."""
        return [i for i in self._by_replica.get(replica, ()) if i.phase is not Phase.LOST]
