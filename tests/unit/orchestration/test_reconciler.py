"""Desired against actual: single decisions."""

from dataclasses import replace

import pytest

from fly.errors import ConfigError
from fly.messages import Role
from orchestration.control.instances import Key, Phase
from orchestration.control.reconciler import UNREACHABLE_S, Drain, End, Start
from orchestration.control.state_store import Record, from_document, to_document
from orchestration.deployment.file import RolloutConfig
from tests.unit.orchestration.reconciler_rig import SURGE, Scene, specs

IN_PLACE = RolloutConfig(surge=0, drain_s=30)


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
                scene.ledger.lost(key, "no weights", scene.now, is_rejection=True)
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
