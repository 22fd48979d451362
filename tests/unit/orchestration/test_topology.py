from pathlib import Path
from typing import Any

from fly.messages import Role
from orchestration.config import Deployment
from orchestration.topology import plan, total_cpus
from services.common.config import parse


def deployment(**tiers: Any) -> Deployment:
    return parse(Deployment, {"target": {"model": "/m/big", "replicas": 2, "threads": 3}, **tiers}, "test")


def test_one_spec_per_replica_helpers_first() -> None:
    specs = plan(deployment(drafter={"model": "/m/small"}, sub_drafter={}), "here:1")
    assert [spec.replica for spec in specs] == ["sub_drafter-0", "drafter-0", "target-0", "target-1"]
    assert [spec.role for spec in specs] == [Role.SUB_DRAFTER, Role.DRAFTER, Role.TARGET, Role.TARGET]


def test_only_drafters_with_a_helper_are_told_of_the_registry() -> None:
    sub_drafter, drafter, target, _ = plan(deployment(drafter={"model": "/m/s"}, sub_drafter={}), "here:1")
    assert drafter.config["registry"] == "here:1"
    assert "registry" not in target.config
    assert "registry" not in sub_drafter.config
    alone = plan(deployment(drafter={"model": "/m/s"}, sub_drafter={"engine": "none"}), "here:1")
    assert [spec.replica for spec in alone] == ["drafter-0", "target-0", "target-1"]
    assert "registry" not in alone[0].config


def test_a_sub_drafter_without_a_drafter_is_left_out() -> None:
    assert {spec.role for spec in plan(deployment(sub_drafter={}), "here:1")} == {Role.TARGET}


def test_models_ask_for_their_threads_and_everything_for_something() -> None:
    specs = plan(deployment(drafter={"model": "/m/small"}, sub_drafter={}), "here:1")
    assert all(spec.num_cpus > 0 for spec in specs)
    assert total_cpus(specs) == 0.5 + 1 + 3 + 3


def test_a_shared_target_asks_for_all_its_shards() -> None:
    shared = {"model": "/m/big", "replicas": 2, "threads": 3, "shards": 4, "group_timeout_s": 9}
    specs = plan(deployment(target=shared, drafter={"model": "/m/small"}), "here:1")
    assert [(spec.replica, spec.shards, spec.num_cpus) for spec in specs] == [
        ("drafter-0", 1, 1.0),
        ("target-0", 4, 3.0),
        ("target-1", 4, 3.0),
    ]
    assert total_cpus(specs) == 1 + 2 * 4 * 3
    assert (specs[1].config["shards"], specs[1].config["group_timeout_s"]) == (4, 9.0)
    assert "shards" not in specs[0].config


def test_actors_are_configured_with_plain_values() -> None:
    target = plan(deployment(), "here:1")[0]
    assert target.config == {
        "model": str(Path("/m/big")),
        "dtype": "bfloat16",
        "max_sequences": 64,
        "kv_tokens": 65_536,
        "threads": 3,
        "address": "127.0.0.1:0",
    }
    assert all(type(value) in (str, int) for value in target.config.values())
