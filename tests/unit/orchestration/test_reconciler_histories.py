"""The reconciler under any sequence of faults, changes and crashes."""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flyserve.core.endpoints import Endpoint
from flyserve.core.messages import Load, Role
from orchestration.control.cluster_state import ClusterState
from orchestration.control.instances import Instance, InstanceKey, Phase
from orchestration.control.reconciler import NO_ROOM_S, Drain, Start, apply, decide
from orchestration.control.state_store import PersistedState, from_document, to_document
from orchestration.deployment.file import RolloutConfig
from orchestration.deployment.plan import ReplicaSpec
from tests.unit.orchestration.reconciler_rig import SURGE, specs

EVENTS = ("ready", "lost", "rejected", "unreachable", "drained", "marked", "full")


class Histories(RuleBasedStateMachine):
    """A fake cluster: the limits always hold, and after the last event the desired state is reached."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.cluster = ClusterState()
        self.desired: tuple[ReplicaSpec, ...] = ()
        self.rollout = SURGE
        self.weights: dict[InstanceKey, str] = {}

    @initialize(surge=st.integers(0, 2))
    def choose(self, surge: int) -> None:
        self.rollout = RolloutConfig(surge=surge, drain_s=20)

    @rule(num_targets=st.integers(1, 4), num_drafters=st.integers(0, 2), weights=st.sampled_from("ab"))
    def want(self, num_targets: int, num_drafters: int, weights: str) -> None:
        self.desired = (*specs(num_drafters, "d", Role.DRAFTER), *specs(num_targets, weights))

    @rule(seconds=st.sampled_from([0.2, 1.0, 7.0, 40.0, NO_ROOM_S]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def reconcile(self) -> None:
        before = self.extra()
        served = self.served()
        crowded = self.crowded()
        for action in decide(self.desired, self.cluster, self.now, self.rollout):
            if isinstance(action, Drain):
                self.check_drain(action.key, crowded)
            instance = apply(action, self.cluster, self.now)
            if isinstance(action, Start) and instance is not None:
                assert instance.key not in self.weights, "a generation was used twice"
                self.weights[instance.key] = instance.spec.config["model"]
        for role in Role:
            assert self.extra()[role] <= max(self.rollout.surge, before[role])
        lost = (served - self.served()) & self.names()
        assert self.rollout.surge == 0 or lost <= crowded
        assert all(sum(name.startswith(role) for name in lost) <= 1 for role in ("target", "drafter"))

    def check_drain(self, key: InstanceKey, crowded: set[str]) -> None:
        """Check that an instance drains only while its successor serves, if there is a surge and room."""
        if key.replica in self.names() - crowded and self.rollout.surge:
            others = [i for k, i in self.cluster.instances.items() if k.replica == key.replica and k != key]
            assert any(i.phase is Phase.READY for i in others)

    def names(self) -> set[str]:
        return {spec.replica for spec in self.desired}

    def crowded(self) -> set[str]:
        """Return the replicas of which an instance has waited for room for long."""
        found = self.cluster.instances.items()
        return {key.replica for key, i in found if i.waiting_for and self.now - i.since >= NO_ROOM_S}

    def served(self) -> set[str]:
        return {k.replica for k, i in self.cluster.instances.items() if i.phase is Phase.READY}

    def extra(self) -> dict[Role, int]:
        extra = dict.fromkeys(Role, 0)
        seen: set[str] = set()
        for key, instance in self.cluster.instances.items():
            if instance.phase is Phase.LOST:
                continue
            extra[instance.role] += key.replica in seen or key.replica not in self.names()
            seen.add(key.replica)
        return extra

    def pick(self, data: st.DataObject, wanted: Callable[[Instance], bool]) -> InstanceKey | None:
        keys = [key for key, instance in sorted(self.cluster.instances.items()) if wanted(instance)]
        return data.draw(st.sampled_from(keys)) if keys else None

    @precondition(lambda self: self.cluster.instances)
    @rule(
        data=st.data(),
        event=st.sampled_from(EVENTS),
    )
    def observe(self, data: st.DataObject, event: str) -> None:
        key = self.pick(data, lambda instance: True)
        assert key is not None
        match event:
            case "ready":
                self.cluster.mark_ready(key, f"h:{key}", self.now)
            case "lost" | "rejected":
                self.cluster.mark_lost(key, event, self.now, event == "rejected")
            case "unreachable":
                self.cluster.mark_unreachable(key, self.now)
            case "drained" if self.cluster.instances[key].phase is Phase.DRAINING:
                self.cluster.mark_lost(key, "", self.now)
            case "marked":
                self.cluster.mark_for_replacement(key)
            case "full" if self.cluster.instances[key].phase is Phase.STARTING:
                self.cluster.record(key, waiting_for="no node has room")

    @rule()
    def crash(self) -> None:
        """Kill the controller and restore it from its document."""
        instances = tuple(replace(i, load=Load()) for i in self.cluster.instances.values())
        before = PersistedState(instances=instances, histories=self.cluster.histories)
        restored = from_document(to_document(before))
        listed = self.cluster.endpoints()
        self.cluster = ClusterState(restored.instances, restored.histories)
        assert self.cluster.endpoints() == listed

    @invariant()
    def a_generation_never_changes_its_weights(self) -> None:
        for key, instance in self.cluster.instances.items():
            assert self.weights[key] == instance.spec.config["model"]

    @invariant()
    def each_generation_is_listed_once(self) -> None:
        listed: list[Endpoint] = list(self.cluster.endpoints())
        assert len({(e.replica, e.generation) for e in listed}) == len(listed)

    def teardown(self) -> None:
        """Check that without further faults the desired state is reached, and stays."""
        for _ in range(60):
            for key, instance in list(self.cluster.instances.items()):
                if instance.phase in (Phase.STARTING, Phase.UNREACHABLE):
                    self.cluster.mark_ready(key, f"h:{key}", self.now)
                elif instance.phase is Phase.DRAINING:
                    self.cluster.mark_lost(key, "", self.now)
            self.reconcile()
            self.now += 5.0
        assert not decide(self.desired, self.cluster, self.now, self.rollout)
        found = {i.key.replica: i.spec for i in self.cluster.instances.values()}
        assert found == {spec.replica: spec for spec in self.desired}
        assert all(i.phase is Phase.READY for i in self.cluster.instances.values())


Histories.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase
