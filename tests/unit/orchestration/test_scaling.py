"""Which replicas make up a tier, what a tier carries, and what applying a file again leaves alone."""

from dataclasses import replace
from typing import Any

import pytest

from flyserve.core.messages import Load, Role
from orchestration.control.autoscaler import Demand, tier_demand
from orchestration.control.instances import Instance, Phase
from orchestration.control.placement import choose_members
from orchestration.control.state_store import PersistedState, from_document, to_document
from orchestration.deployment.file import Deployment
from orchestration.deployment.plan import ReplicaSpec
from orchestration.deployment.scaling import at_its_largest, keeping_replicas
from services.common.config import parse
from services.common.telemetry.process import Telemetry
from services.lookup.config import SuffixConfig
from services.lookup.servicer import LookupServicer

NAMES = ("target-0", "target-1", "target-2")


def deployment(replicas: int = 3, **target: Any) -> Deployment:
    data = {"target": {"model": "/m/big", "replicas": replicas, **target}, "drafter": {"model": "/m/small"}}
    return parse(Deployment, data, "test")


def instance(
    index: int, phase: Phase = Phase.READY, sequences: int = 0, queued: int = 0, kv_used: int = 0
) -> Instance:
    spec = ReplicaSpec(Role.TARGET, f"target-{index}", "m:C", 1.0, {})
    load = Load(sequences=sequences, queued=queued, kv_used=kv_used, kv_capacity=100)
    return Instance(spec, 1, phase, load=load)


def targets(replicas: int, *instances: Instance) -> tuple[str, ...]:
    return choose_members(deployment(replicas), {Role.TARGET: NAMES}, instances)[Role.TARGET]


def test_of_too_many_those_go_that_carry_the_least() -> None:
    carrying = (instance(0, sequences=2), instance(1, sequences=9), instance(2, sequences=1, queued=4))
    assert targets(2, *carrying) == ("target-1", "target-2")
    assert targets(1, *carrying) == ("target-1",)


def test_of_too_many_those_go_first_that_do_not_serve_and_then_the_last_ones() -> None:
    assert targets(2, instance(0, Phase.STARTING), instance(1), instance(2)) == ("target-1", "target-2")
    assert targets(1, instance(0), instance(1), instance(2)) == ("target-0",)
    assert targets(2) == ("target-0", "target-1")


def test_a_new_one_has_a_name_under_which_nothing_runs() -> None:
    members = {Role.TARGET: ("target-2",)}
    draining = instance(0, Phase.DRAINING, sequences=3)
    chosen = choose_members(deployment(3), members, [draining])
    assert chosen[Role.TARGET] == ("target-2", "target-1", "target-3")


def test_members_survive_in_the_document() -> None:
    state = PersistedState(
        deployment(), members={Role.TARGET: ("target-1", "target-4"), Role.DRAFTER: ("drafter-0",)}
    )
    assert from_document(to_document(state)) == state


def test_a_file_that_is_applied_again_keeps_a_number_until_it_has_another_one_itself() -> None:
    scaled = deployment(6)
    for in_file, number, expected in ((2, 2, 6), (2, 3, 3), (6, 6, 6)):
        kept = keeping_replicas(deployment(number), scaled, {Role.TARGET: in_file})
        assert kept.target.replicas == expected
    by_load = deployment(6, autoscaling={"min": 1, "max": 8})
    assert keeping_replicas(deployment(1, autoscaling={"min": 1, "max": 8}), by_load) == by_load
    assert keeping_replicas(deployment(1, autoscaling={"min": 1, "max": 4}), by_load).target.replicas == 4
    assert at_its_largest(by_load).target.replicas == 8
    assert keeping_replicas(deployment(2), by_load, {Role.TARGET: 2}).target.replicas == 2


@pytest.mark.parametrize(
    ("instances", "demand"),
    [
        ([], None),
        ([instance(0, Phase.STARTING)], None),
        ([instance(0, Phase.UNREACHABLE, sequences=8)], None),
        ([Instance(instance(0).spec, 1, Phase.READY)], None),
        ([instance(0, sequences=2, queued=4), instance(1, sequences=2)], Demand(2.0)),
        ([instance(0, sequences=1, kv_used=90), instance(1, sequences=2, kv_used=60)], Demand(1.5)),
        ([instance(0, sequences=1, queued=1, kv_used=90)], Demand(1.8)),
        ([instance(0, sequences=2), instance(1, Phase.DRAINING, sequences=6)], Demand(0.5, 1.5)),
        ([instance(0, sequences=2), instance(1, Phase.STARTING, sequences=6)], Demand(0.5)),
    ],
)
def test_the_demand_is_what_serving_replicas_carry(instances: list[Instance], demand: Demand | None) -> None:
    assert tier_demand(instances, max_sequences=4) == demand


def test_sequences_that_wait_in_routers_add_to_the_demand() -> None:
    full = [instance(0, sequences=4, kv_used=40), instance(1, Phase.DRAINING, sequences=4)]
    assert tier_demand(full, max_sequences=4, waiting=12) == Demand(4.0, 1.0)
    long = [instance(0, sequences=2, kv_used=80)]
    assert tier_demand(long, max_sequences=64, waiting=2) == Demand(1.6)


def test_a_stopped_tier_has_the_demand_of_the_waiting_sequences() -> None:
    assert tier_demand([], max_sequences=4, waiting=6, is_stopped=True) == Demand(1.5)
    leaving = [instance(0, Phase.DRAINING, sequences=4)]
    assert tier_demand(leaving, max_sequences=4, is_stopped=True) == Demand(0.0, 1.0)


def test_the_load_of_a_look_up_drafter_is_its_sequences_and_not_its_cache() -> None:
    config = SuffixConfig(role=Role.DRAFTER, response_cache_tokens=1024, max_sequences=10)
    servicer = LookupServicer(config, Telemetry())
    idle = servicer._load()
    assert idle.kv_capacity, "0 stands for an unknown load"
    full = idle._replace(sequences=7, kv_cached=1024)
    drafters = [replace(instance(0), load=load) for load in (idle, full)]
    assert tier_demand(drafters, max_sequences=10) == Demand(0.7)
