"""Single decisions of the reconciler."""

from dataclasses import replace

import pytest

from flyserve.core.errors import ConfigError
from flyserve.core.messages import Role
from orchestration.control.instances import InstanceKey, Phase
from orchestration.control.reconciler import NO_ROOM_S, UNREACHABLE_S, Drain, Start, Stop
from orchestration.control.state_store import PersistedState, from_document, to_document
from orchestration.deployment.file import RolloutConfig
from tests.unit.orchestration.reconciler_rig import SURGE, Scene, specs

IN_PLACE = RolloutConfig(surge=0, drain_s=30)


def test_other_weights_replace_one_by_one_and_the_new_one_is_ready_before_the_old_drains() -> None:
    scene = Scene().serve(*specs(2))
    new = scene.desired = specs(2, "b")
    assert scene.decide() == [Start(new[0])]
    assert not scene.decide()
    scene.make_ready()
    assert scene.decide() == [Drain(InstanceKey("target-0", 1))]
    assert not scene.decide(), "the next one waits until the drain has made room"
    scene.cluster.mark_lost(InstanceKey("target-0", 1), "", scene.now)
    assert scene.decide() == [Stop(InstanceKey("target-0", 1)), Start(new[1])]
    scene.make_ready()
    assert scene.decide() == [Drain(InstanceKey("target-1", 1))]


def test_without_a_surge_a_replica_drains_before_its_successor_starts() -> None:
    scene = Scene(IN_PLACE).serve(*specs(2))
    new = scene.desired = specs(2, "b")
    assert scene.decide() == [Drain(InstanceKey("target-0", 1))]
    assert not scene.decide()
    scene.cluster.mark_lost(InstanceKey("target-0", 1), "", scene.now)
    assert scene.decide() == [Stop(InstanceKey("target-0", 1)), Start(new[0])]
    assert not scene.decide()
    scene.make_ready()
    assert scene.decide() == [Drain(InstanceKey("target-1", 1))]


def test_a_successor_without_room_for_long_gets_that_of_its_predecessor_while_others_serve() -> None:
    scene = Scene().serve(*specs(2))
    new = scene.desired = specs(2, "b")
    assert scene.decide() == [Start(new[0])]
    scene.cluster.record(InstanceKey("target-0", 2), waiting_for="no node has room")
    scene.now += NO_ROOM_S - 1
    assert not scene.decide()
    scene.now += 1
    assert scene.decide() == [Drain(InstanceKey("target-0", 1))]
    assert not scene.decide()
    scene.cluster.mark_lost(InstanceKey("target-0", 1), "", scene.now)
    assert scene.decide() == [Stop(InstanceKey("target-0", 1)), Start(new[1])]


@pytest.mark.parametrize(
    ("replicas", "observed"),
    [
        (1, {"waiting_for": "no node has room"}),
        (2, {"waiting_for": "Ray does not answer", "node": "a"}),
        (2, {"node": "a"}),
    ],
    ids=["the only replica", "a node was found", "it loads its model"],
)
def test_a_predecessor_serves_on_where_its_room_would_not_help(
    replicas: int, observed: dict[str, str]
) -> None:
    scene = Scene().serve(*specs(replicas))
    scene.desired = specs(replicas, "b")
    scene.decide()
    scene.cluster.record(InstanceKey("target-0", 2), **observed)
    scene.now += 10 * NO_ROOM_S
    assert not scene.decide()


def place(scene: Scene, capacity: int) -> None:
    """Let the instances that have no room wait, and all others serve; end those that drain."""
    waiting = [key for key, i in scene.cluster.instances.items() if i.phase is Phase.STARTING]
    for key, instance in list(scene.cluster.instances.items()):
        if instance.phase is Phase.DRAINING:
            scene.cluster.mark_lost(key, "", scene.now)
    free = capacity - len(scene.cluster.instances) + len(waiting)
    for key in waiting[:free]:
        scene.cluster.mark_ready(key, f"h:{key}", scene.now)
    for key in waiting[free:]:
        scene.cluster.record(key, waiting_for="no node has room")


@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize("surge", [0, 1, 2])
@pytest.mark.parametrize("spare", [0, 1])
def test_a_rollout_ends_on_nodes_without_room_for_a_successor(replicas: int, surge: int, spare: int) -> None:
    scene = Scene(RolloutConfig(surge=surge, drain_s=30)).serve(*specs(replicas))
    scene.desired = specs(replicas, "b")
    for _ in range(20 * replicas):
        scene.decide()
        place(scene, replicas + spare)
        serving = {k.replica for k, i in scene.cluster.instances.items() if i.phase is Phase.READY}
        assert len(serving) >= replicas - 1
        scene.now += NO_ROOM_S / 2
    assert not scene.decide()
    assert [i.spec for _, i in sorted(scene.cluster.instances.items())] == list(scene.desired)


def test_a_successor_that_fails_leaves_the_old_ones_alone() -> None:
    scene = Scene().serve(*specs(2))
    scene.desired = specs(2, "broken")
    for _ in range(20):
        scene.decide()
        for key, instance in list(scene.cluster.instances.items()):
            if instance.phase is Phase.STARTING:
                scene.cluster.mark_lost(key, "no weights", scene.now, is_rejection=True)
        scene.now += 10
    ready = [str(key) for key, i in scene.cluster.instances.items() if i.phase is Phase.READY]
    assert ready == ["target-0.1", "target-1.1"]
    assert scene.cluster.history("target-0").fault == "no weights"


def test_a_lost_replica_is_restarted_with_growing_delays() -> None:
    scene = Scene()
    scene.desired = specs(1)
    waits = []
    for _ in range(8):
        assert [type(action) for action in scene.decide()] == [Start]
        scene.cluster.mark_lost(next(iter(scene.cluster.instances)), "crashed", scene.now)
        scene.decide()
        waits.append(scene.cluster.history("target-0").retry_at - scene.now)
        scene.now += waits[-1] - 0.1
        assert not scene.decide()
        scene.now += 0.2
    assert waits[:4] == [0.5, 1.0, 2.0, 4.0]
    assert max(waits) == 30


def test_a_replica_that_served_for_long_is_restarted_soon_and_on_another_node() -> None:
    scene = Scene()
    scene.cluster.histories["target-0"] = replace(scene.cluster.history("target-0"), failures=7)
    scene.serve(*specs(1))
    scene.cluster.record(InstanceKey("target-0", 1), node="node-a")
    scene.now += 60
    scene.cluster.mark_lost(InstanceKey("target-0", 1), "crashed", scene.now)
    history = scene.cluster.history("target-0")
    assert (history.retry_at - scene.now, history.avoid) == (0.5, "node-a")


@pytest.mark.parametrize(
    ("served_s", "wait_s"), [(60.0, 0.5), (1.0, 30.0)], ids=["served for long", "served for a moment"]
)
def test_an_instance_is_unreachable_before_it_is_lost_and_its_time_of_service_counts(
    served_s: float, wait_s: float
) -> None:
    """The reports of an instance whose process ends break off before its end is known."""
    scene = Scene()
    scene.cluster.histories["target-0"] = replace(scene.cluster.history("target-0"), failures=7)
    scene.serve(*specs(1))
    scene.now += served_s
    scene.cluster.mark_unreachable(InstanceKey("target-0", 1), scene.now)
    scene.now += 0.25
    scene.cluster.mark_lost(InstanceKey("target-0", 1), "crashed", scene.now)
    assert scene.cluster.history("target-0").retry_at - scene.now == wait_s


def test_the_successor_of_a_replica_that_served_for_long_starts_without_its_failures() -> None:
    scene = Scene()
    scene.cluster.histories["target-0"] = replace(scene.cluster.history("target-0"), failures=7)
    scene.serve(*specs(1))
    scene.now += 60
    scene.cluster.mark_draining(InstanceKey("target-0", 1), scene.now)
    scene.cluster.mark_lost(InstanceKey("target-0", 1), "", scene.now)
    assert Start(specs(1)[0]) in scene.decide()
    scene.cluster.mark_lost(InstanceKey("target-0", 2), "crashed", scene.now)
    assert scene.cluster.history("target-0").retry_at - scene.now == 0.5


def test_an_unreachable_instance_is_stopped_after_a_while_but_not_before() -> None:
    scene = Scene().serve(*specs(1))
    scene.cluster.mark_unreachable(InstanceKey("target-0", 1), scene.now)
    scene.now += UNREACHABLE_S - 0.1
    assert not scene.decide()
    scene.now += 0.2
    assert [str(action.key) for action in scene.decide() if isinstance(action, Stop)] == ["target-0.1"]
    scene.now += 1
    assert scene.decide() == [Start(specs(1)[0])]


def test_fewer_replicas_drain_the_last_ones() -> None:
    scene = Scene().serve(*specs(3))
    scene.desired = specs(1)
    assert scene.decide() == [Drain(InstanceKey("target-1", 1)), Drain(InstanceKey("target-2", 1))]
    draining = [endpoint.replica for endpoint in scene.cluster.endpoints() if endpoint.draining]
    assert draining == ["target-1", "target-2"]


def test_a_condemned_replica_is_replaced_by_one_of_the_same() -> None:
    scene = Scene().serve(*specs(2))
    scene.cluster.record(InstanceKey("target-1", 1), node="node-a")
    scene.cluster.mark_for_replacement(InstanceKey("target-1", 1))
    assert scene.decide() == [Start(specs(2)[1])]
    assert scene.cluster.history("target-1").avoid == "node-a"
    scene.make_ready()
    assert scene.decide() == [Drain(InstanceKey("target-1", 1))]


def test_of_two_outdated_ready_instances_the_newer_stays_until_its_successor_serves() -> None:
    scene = Scene().serve(*specs(1))
    scene.cluster.mark_for_replacement(InstanceKey("target-0", 1))
    scene.decide()
    scene.make_ready()
    new = scene.desired = specs(1, "b")
    assert scene.decide() == [Drain(InstanceKey("target-0", 1))]
    scene.cluster.mark_lost(InstanceKey("target-0", 1), "", scene.now)
    assert scene.decide() == [Stop(InstanceKey("target-0", 1)), Start(new[0])]
    scene.make_ready()
    assert scene.decide() == [Drain(InstanceKey("target-0", 2))]


def test_an_instance_that_drains_for_too_long_is_stopped() -> None:
    scene = Scene().serve(*specs(1))
    scene.desired = ()
    scene.decide()
    scene.now += SURGE.drain_s + 11
    assert scene.decide() == [Stop(InstanceKey("target-0", 1))]


def test_a_state_survives_its_document_and_another_versions_is_rejected() -> None:
    scene = Scene().serve(*specs(2), *specs(1, role=Role.DRAFTER))
    scene.cluster.mark_lost(InstanceKey("target-1", 1), "crashed", scene.now)
    state = PersistedState(
        instances=tuple(scene.cluster.instances.values()), histories=scene.cluster.histories, snapshot=3
    )
    assert from_document(to_document(state)) == state
    with pytest.raises(ConfigError, match=r"another version .deployment.target: Field required"):
        from_document(b'{"deployment": {}}')
    with pytest.raises(ConfigError, match=r"another version .slots: Unexpected"):
        from_document(b'{"slots": {}}')
