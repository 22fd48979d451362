"""Desired against actual: single decisions, and any history of faults, changes and crashes."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fly.errors import ConfigError
from fly.messages import Endpoint, Load, Role
from orchestration.config import RolloutConfig
from orchestration.ledger import Ledger
from orchestration.reconciler import UNREACHABLE_S, Action, Drain, End, Start, apply, decide
from orchestration.replicas import Instance, Key, Phase
from orchestration.store import Record, from_document, to_document
from orchestration.topology import ReplicaSpec

SURGE = RolloutConfig(surge=1, drain_s=30)
IN_PLACE = RolloutConfig(surge=0, drain_s=30)


def specs(number: int, weights: str = "a", role: Role = Role.TARGET) -> tuple[ReplicaSpec, ...]:
    return tuple(
        ReplicaSpec(role, f"{role}-{index}", "m:C", 1.0, {"model": weights}) for index in range(number)
    )


class Scene:
    """Instances that a test moves along."""

    def __init__(self, rollout: RolloutConfig = SURGE) -> None:
        self.ledger, self.rollout, self.now = Ledger(), rollout, 100.0
        self.desired: tuple[ReplicaSpec, ...] = ()

    def decide(self) -> list[Action]:
        actions = decide(self.desired, self.ledger, self.now, self.rollout)
        for action in actions:
            apply(action, self.ledger, self.now)
        return actions

    def serve(self, *desired: ReplicaSpec) -> "Scene":
        """Everything desired is ready."""
        self.desired = desired
        self.decide()
        self.make_ready()
        assert not self.decide()
        return self

    def make_ready(self) -> None:
        for key, instance in self.ledger.instances.items():
            if instance.phase is Phase.STARTING:
                self.ledger.ready(key, f"h:{key.replica}.{key.generation}", self.now)


def test_what_is_desired_is_started_and_applying_it_again_does_nothing() -> None:
    scene = Scene().serve(*specs(2))
    assert {str(key) for key in scene.ledger.instances} == {"target-0.1", "target-1.1"}
    scene.desired = specs(2)
    assert not scene.decide()


def test_other_weights_replace_one_by_one_and_the_new_one_is_ready_before_the_old_drains() -> None:
    scene = Scene().serve(*specs(2))
    new = scene.desired = specs(2, "b")
    assert scene.decide() == [Start(new[0])]
    assert not scene.decide()
    scene.make_ready()
    assert scene.decide() == [Drain(Key("target-0", 1))]
    assert not scene.decide(), "the next one waits until the drain has made room"
    scene.ledger.lost(Key("target-0", 1), "", scene.now)
    assert scene.decide() == [End(Key("target-0", 1)), Start(new[1])]
    scene.make_ready()
    assert scene.decide() == [Drain(Key("target-1", 1))]


def test_without_a_surge_a_replica_drains_before_its_successor_starts() -> None:
    scene = Scene(IN_PLACE).serve(*specs(2))
    new = scene.desired = specs(2, "b")
    assert scene.decide() == [Drain(Key("target-0", 1))]
    assert not scene.decide()
    scene.ledger.lost(Key("target-0", 1), "", scene.now)
    assert scene.decide() == [End(Key("target-0", 1)), Start(new[0])]
    assert not scene.decide()
    scene.make_ready()
    assert scene.decide() == [Drain(Key("target-1", 1))]


def test_a_successor_that_fails_leaves_the_old_ones_alone() -> None:
    scene = Scene().serve(*specs(2))
    scene.desired = specs(2, "broken")
    for _ in range(20):
        scene.decide()
        for key, instance in list(scene.ledger.instances.items()):
            if instance.phase is Phase.STARTING:
                scene.ledger.lost(key, "no weights", scene.now, is_refusal=True)
        scene.now += 10
    ready = [str(key) for key, i in scene.ledger.instances.items() if i.phase is Phase.READY]
    assert ready == ["target-0.1", "target-1.1"]
    assert scene.ledger.slot("target-0").fault == "no weights"


def test_a_lost_replica_is_started_again_later_and_later() -> None:
    scene = Scene()
    scene.desired = specs(1)
    waits = []
    for _ in range(8):
        assert [type(action) for action in scene.decide()] == [Start]
        scene.ledger.lost(next(iter(scene.ledger.instances)), "crashed", scene.now)
        scene.decide()
        waits.append(scene.ledger.slot("target-0").retry_at - scene.now)
        scene.now += waits[-1] - 0.1
        assert not scene.decide()
        scene.now += 0.2
    assert waits[:4] == [0.5, 1.0, 2.0, 4.0]
    assert max(waits) == 30


def test_who_served_for_long_is_started_again_at_once_and_elsewhere() -> None:
    scene = Scene()
    scene.ledger.slots["target-0"] = replace(scene.ledger.slot("target-0"), failures=7)
    scene.serve(*specs(1))
    scene.ledger.placed(Key("target-0", 1), "node-a")
    scene.now += 60
    scene.ledger.lost(Key("target-0", 1), "crashed", scene.now)
    slot = scene.ledger.slot("target-0")
    assert (slot.retry_at - scene.now, slot.avoid) == (0.5, "node-a")


def test_who_does_not_answer_is_ended_after_a_while_but_not_before() -> None:
    scene = Scene().serve(*specs(1))
    scene.ledger.unreachable(Key("target-0", 1), scene.now)
    scene.now += UNREACHABLE_S - 0.1
    assert not scene.decide()
    scene.now += 0.2
    assert [str(action.key) for action in scene.decide() if isinstance(action, End)] == ["target-0.1"]
    scene.now += 1
    assert scene.decide() == [Start(specs(1)[0])]


def test_a_blip_changes_nothing_but_what_routers_are_told_meanwhile() -> None:
    scene = Scene().serve(*specs(1))
    told = scene.ledger.endpoints()
    scene.ledger.unreachable(Key("target-0", 1), scene.now)
    assert scene.ledger.endpoints() == ()
    scene.ledger.ready(Key("target-0", 1), told[0].address, scene.now)
    assert scene.ledger.endpoints() == told
    assert not scene.decide()


def test_fewer_replicas_drain_the_last_ones() -> None:
    scene = Scene().serve(*specs(3))
    scene.desired = specs(1)
    assert scene.decide() == [Drain(Key("target-1", 1)), Drain(Key("target-2", 1))]
    draining = [endpoint.replica for endpoint in scene.ledger.endpoints() if endpoint.draining]
    assert draining == ["target-1", "target-2"]


def test_a_condemned_replica_is_replaced_by_one_of_the_same() -> None:
    scene = Scene().serve(*specs(2))
    scene.ledger.placed(Key("target-1", 1), "node-a")
    scene.ledger.condemn(Key("target-1", 1))
    assert scene.decide() == [Start(specs(2)[1])]
    assert scene.ledger.slot("target-1").avoid == "node-a"
    scene.make_ready()
    assert scene.decide() == [Drain(Key("target-1", 1))]


def test_of_two_outdated_ones_that_serve_the_newer_stays_until_its_successor_serves() -> None:
    scene = Scene().serve(*specs(1))
    scene.ledger.condemn(Key("target-0", 1))
    scene.decide()
    scene.make_ready()
    new = scene.desired = specs(1, "b")
    assert scene.decide() == [Drain(Key("target-0", 1))]
    scene.ledger.lost(Key("target-0", 1), "", scene.now)
    assert scene.decide() == [End(Key("target-0", 1)), Start(new[0])]
    scene.make_ready()
    assert scene.decide() == [Drain(Key("target-0", 2))]


def test_a_drain_that_never_ends_is_ended() -> None:
    scene = Scene().serve(*specs(1))
    scene.desired = ()
    scene.decide()
    scene.now += SURGE.drain_s + 11
    assert scene.decide() == [End(Key("target-0", 1))]


def test_a_ledger_comes_back_from_its_document() -> None:
    scene = Scene().serve(*specs(2), *specs(1, role=Role.DRAFTER))
    scene.ledger.lost(Key("target-1", 1), "crashed", scene.now)
    record = Record(instances=tuple(scene.ledger.instances.values()), slots=scene.ledger.slots, snapshot=3)
    assert from_document(to_document(record)) == record
    with pytest.raises(ConfigError, match=r"another version .deployment.target: Field required"):
        from_document(b'{"deployment": {}}')


EVENTS = ("ready", "lost", "refused", "unreachable", "drained", "condemned")


class Histories(RuleBasedStateMachine):
    """A fake cluster: whatever happens, limits hold; once it stops, the desired state is reached."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ledger = Ledger()
        self.desired: tuple[ReplicaSpec, ...] = ()
        self.rollout = SURGE
        self.weights: dict[Key, str] = {}

    @initialize(surge=st.integers(0, 2))
    def choose(self, surge: int) -> None:
        self.rollout = RolloutConfig(surge=surge, drain_s=20)

    @rule(num_targets=st.integers(1, 4), num_drafters=st.integers(0, 2), weights=st.sampled_from("ab"))
    def want(self, num_targets: int, num_drafters: int, weights: str) -> None:
        self.desired = (*specs(num_drafters, "d", Role.DRAFTER), *specs(num_targets, weights))

    @rule(seconds=st.sampled_from([0.2, 1.0, 7.0, 40.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def reconcile(self) -> None:
        before = self.extra()
        served = self.served()
        for action in decide(self.desired, self.ledger, self.now, self.rollout):
            if isinstance(action, Drain):
                self.judge_drain(action.key)
            instance = apply(action, self.ledger, self.now)
            if isinstance(action, Start) and instance is not None:
                assert instance.key not in self.weights, "a generation was used twice"
                self.weights[instance.key] = instance.spec.config["model"]
        for role in Role:
            assert self.extra()[role] <= max(self.rollout.surge, before[role])
        lost = (served - self.served()) & self.names()
        assert not lost or self.rollout.surge == 0
        assert all(sum(name.startswith(role) for name in lost) <= 1 for role in ("target", "drafter"))

    def judge_drain(self, key: Key) -> None:
        """Who is still desired drains only once a successor serves, or where that was allowed."""
        if key.replica in self.names() and self.rollout.surge:
            successors = [i for i in self.ledger.instances.values() if i.key.replica == key.replica]
            assert any(i.phase is Phase.READY and i.generation > key.generation for i in successors)

    def names(self) -> set[str]:
        return {spec.replica for spec in self.desired}

    def served(self) -> set[str]:
        return {k.replica for k, i in self.ledger.instances.items() if i.phase is Phase.READY}

    def extra(self) -> dict[Role, int]:
        extra = dict.fromkeys(Role, 0)
        seen: set[str] = set()
        for key, instance in self.ledger.instances.items():
            if instance.phase is Phase.LOST:
                continue
            extra[instance.role] += key.replica in seen or key.replica not in self.names()
            seen.add(key.replica)
        return extra

    def pick(self, data: st.DataObject, wanted: Callable[[Instance], bool]) -> Key | None:
        keys = [key for key, instance in sorted(self.ledger.instances.items()) if wanted(instance)]
        return data.draw(st.sampled_from(keys)) if keys else None

    @precondition(lambda self: self.ledger.instances)
    @rule(
        data=st.data(),
        event=st.sampled_from(EVENTS),
    )
    def observe(self, data: st.DataObject, event: str) -> None:
        key = self.pick(data, lambda instance: True)
        assert key is not None
        match event:
            case "ready":
                self.ledger.ready(key, f"h:{key}", self.now)
            case "lost" | "refused":
                self.ledger.lost(key, event, self.now, event == "refused")
            case "unreachable":
                self.ledger.unreachable(key, self.now)
            case "drained" if self.ledger.instances[key].phase is Phase.DRAINING:
                self.ledger.lost(key, "", self.now)
            case "condemned":
                self.ledger.condemn(key)

    @rule()
    def crash(self) -> None:
        """The controller is killed and comes back with what it had written down."""
        lasting = tuple(replace(i, load=Load()) for i in self.ledger.instances.values())
        record = from_document(to_document(Record(instances=lasting, slots=self.ledger.slots)))
        told = self.ledger.endpoints()
        self.ledger = Ledger(record.instances, record.slots)
        assert self.ledger.endpoints() == told

    @invariant()
    def a_generation_never_changes_its_weights(self) -> None:
        for key, instance in self.ledger.instances.items():
            assert self.weights[key] == instance.spec.config["model"]

    @invariant()
    def routers_are_told_of_each_generation_once(self) -> None:
        told: list[Endpoint] = list(self.ledger.endpoints())
        assert len({(e.replica, e.generation) for e in told}) == len(told)

    def teardown(self) -> None:
        """Without further faults the desired state is reached, and stays."""
        for _ in range(60):
            for key, instance in list(self.ledger.instances.items()):
                if instance.phase in (Phase.STARTING, Phase.UNREACHABLE):
                    self.ledger.ready(key, f"h:{key}", self.now)
                elif instance.phase is Phase.DRAINING:
                    self.ledger.lost(key, "", self.now)
            self.reconcile()
            self.now += 5.0
        assert not decide(self.desired, self.ledger, self.now, self.rollout)
        found = {i.key.replica: i.spec for i in self.ledger.instances.values()}
        assert found == {spec.replica: spec for spec in self.desired}
        assert all(i.phase is Phase.READY for i in self.ledger.instances.values())


Histories.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase
