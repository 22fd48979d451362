"""A lost replica gets its room back before others that wait for room are started."""

from dataclasses import replace

from flyserve.core.messages import Role
from orchestration.control import status
from orchestration.control.instances import InstanceKey
from orchestration.control.reconciler import Drain, Start, Stop
from orchestration.control.status import ReplicaState
from orchestration.deployment.file import RolloutConfig
from tests.unit.orchestration.reconciler_rig import Scene, specs

(TARGET,) = specs(1)
(DRAFTER,) = specs(1, role=Role.DRAFTER)
(OTHER_DRAFTER,) = specs(1, "b", role=Role.DRAFTER)
NO_ROOM = "no node has room for 1 CPUs at present"


def crowded() -> Scene:
    """Return a target that serves and a drafter that has found no room."""
    scene = Scene().serve(TARGET)
    scene.desired = (TARGET, DRAFTER)
    assert scene.decide() == [Start(DRAFTER)]
    scene.cluster.record(InstanceKey("drafter-0", 1), waiting_for=NO_ROOM)
    assert not scene.decide()
    return scene


def lose_target(scene: Scene, generation: int = 1) -> None:
    scene.cluster.mark_lost(InstanceKey("target-0", generation), "it was killed", scene.now)


def test_a_start_that_waits_for_room_is_withdrawn_until_the_lost_replica_has_room() -> None:
    scene = crowded()
    lose_target(scene)
    assert set(scene.decide()) == {Stop(InstanceKey("target-0", 1)), Stop(InstanceKey("drafter-0", 1))}
    scene.now += 1
    assert scene.decide() == [Start(TARGET)]
    scene.cluster.record(InstanceKey("target-0", 2), waiting_for=NO_ROOM)
    scene.now += 60
    assert not scene.decide()
    rows = status.replicas(scene.desired, scene.cluster, scene.now, {}, {})
    (row,) = [row for row in rows if row.role is Role.DRAFTER]
    assert (row.state, row.detail) == (
        ReplicaState.PENDING,
        "it waits until target-0 has found room again",
    )
    scene.cluster.record(InstanceKey("target-0", 2), waiting_for="")
    assert scene.decide() == [Start(DRAFTER)]


def test_a_start_that_has_room_goes_on() -> None:
    scene = crowded()
    scene.cluster.record(InstanceKey("drafter-0", 1), waiting_for="")
    lose_target(scene)
    assert scene.decide() == [Stop(InstanceKey("target-0", 1))]


def test_a_replica_that_needs_no_such_resource_is_not_held_up() -> None:
    gpu = replace(TARGET, num_gpus=1.0)
    scene = Scene().serve(gpu)
    scene.desired = (gpu, DRAFTER)
    lose_target(scene)
    assert Start(DRAFTER) in scene.decide()


def waiting_target(surge: int) -> Scene:
    """Return a drafter that serves and a lost target that finds no room."""
    scene = Scene(RolloutConfig(surge=surge)).serve(TARGET, DRAFTER)
    lose_target(scene)
    scene.decide()
    scene.now += 1
    assert scene.decide() == [Start(TARGET)]
    scene.cluster.record(InstanceKey("target-0", 2), waiting_for=NO_ROOM)
    return scene


def test_a_replica_that_is_replaced_in_place_starts_again_although_a_lost_one_waits() -> None:
    """Its room may be too small for the lost one, or be what the lost one waits for."""
    scene = waiting_target(surge=0)
    scene.desired = (TARGET, OTHER_DRAFTER)
    assert scene.decide() == [Drain(InstanceKey("drafter-0", 1))]
    assert not scene.decide()
    scene.cluster.mark_lost(InstanceKey("drafter-0", 1), "", scene.now)
    assert scene.decide() == [Stop(InstanceKey("drafter-0", 1)), Start(OTHER_DRAFTER)]
    scene.make_ready()
    assert not scene.decide()


def test_a_replica_that_leaves_its_node_starts_again_although_a_lost_one_waits() -> None:
    scene = waiting_target(surge=1)
    scene.cluster.mark_for_replacement(InstanceKey("drafter-0", 1))
    scene.cluster.mark_draining(InstanceKey("drafter-0", 1), scene.now)
    scene.cluster.mark_lost(InstanceKey("drafter-0", 1), "", scene.now)
    assert scene.decide() == [Stop(InstanceKey("drafter-0", 1)), Start(DRAFTER)]


def test_a_successor_starts_beside_its_predecessor_although_a_lost_one_waits() -> None:
    scene = waiting_target(surge=1)
    scene.desired = (TARGET, OTHER_DRAFTER)
    assert scene.decide() == [Start(OTHER_DRAFTER)]
    scene.cluster.record(InstanceKey("drafter-0", 2), waiting_for=NO_ROOM)
    scene.now += 60
    assert not scene.decide(), "it is not started over and over"


def test_a_replica_that_fails_again_and_again_holds_nothing_up() -> None:
    scene = Scene().serve(TARGET)
    for generation in range(1, 5):
        lose_target(scene, generation)
        scene.desired = (TARGET, DRAFTER)
        is_started = Start(DRAFTER) in scene.decide()
        assert is_started is (generation == 4)
        scene.now += 30
        if not is_started:
            assert scene.decide() == [Start(TARGET)]
