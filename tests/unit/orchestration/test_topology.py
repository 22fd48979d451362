import math
import os
from typing import Any

import pytest

from flyserve.core.errors import ConfigError
from flyserve.core.messages import Role
from orchestration.deployment.file import Deployment
from orchestration.deployment.plan import LOOKUP_DRAFTER, ReplicaSpec, plan, total_cpus
from services.common.config import parse
from services.drafter.config import DrafterConfig
from services.lookup.config import SuffixConfig


def deployment(**tiers: Any) -> Deployment:
    return parse(Deployment, {"target": {"model": "/m/big", "replicas": 2, "threads": 3}, **tiers}, "test")


def test_one_spec_per_replica_helpers_first() -> None:
    specs = plan(deployment(drafter={"model": "/m/small"}, sub_drafter={}), "here:1")
    assert [spec.replica for spec in specs] == ["sub_drafter-0", "drafter-0", "target-0", "target-1"]
    assert [spec.config.get("registry") for spec in specs] == [None, "here:1", None, None]
    assert total_cpus(specs) == 0.5 + 1 + 3 + 3
    alone = plan(deployment(drafter={"model": "/m/s"}, sub_drafter={"engine": "none"}), "here:1")
    assert "registry" not in alone[0].config


def test_a_sub_drafter_without_a_drafter_is_left_out() -> None:
    assert {spec.role for spec in plan(deployment(sub_drafter={}), "here:1")} == {Role.TARGET}


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


def test_replicas_on_gpus_request_them_and_others_stay_on_the_cpu() -> None:
    sharded = {"model": "/m/big", "shards": 4, "gpus": 1}
    drafter, target = plan(deployment(target=sharded, drafter={"model": "/m/small"}), "here:1")
    assert (target.config["device"], target.resources) == ("cuda", {"CPU": 1.0, "GPU": 1.0})
    assert "device" not in drafter.config and drafter.resources == {"CPU": 1.0}
    (part,) = plan(deployment(target={"model": "/m/big", "gpus": 0.5}), "here:1")
    assert (part.config["device"], part.resources) == ("cuda", {"CPU": 1.0, "GPU": 0.5})


def test_vllm_starts_its_processes_in_one_actor_that_holds_all_their_resources() -> None:
    target = {"model": "/m/big", "engine": "vllm", "shards": 4, "gpus": 1, "threads": 2, "replicas": 2}
    piped = {**target, "engine_args": {"pipeline_parallel_size": 2}, "replicas": 1}
    assert plan(deployment(target=piped), "here:1")[0].resources == {"CPU": 16.0, "GPU": 8.0}
    drafter = {"model": "/m/small", "engine": "vllm", "gpus": 1}
    helper, *targets = plan(deployment(target=target, drafter=drafter), "here:1")
    assert (helper.shards, helper.resources) == (1, {"CPU": 1.0, "GPU": 1.0})
    for spec in targets:
        assert (spec.shards, spec.resources) == (1, {"CPU": 8.0, "GPU": 4.0})
        assert (spec.config["engine"], spec.config["shards"]) == ("vllm", 4)
    assert total_cpus([helper, *targets]) == 1 + 2 * 8


def test_every_tier_asks_for_the_mark_of_its_nodes() -> None:
    marked = {
        "target": {"model": "/m/big", "node_resource": "large"},
        "drafter": {"model": "/m/small", "node_resource": "small"},
        "sub_drafter": {"node_resource": "memory"},
    }
    specs = plan(deployment(**marked), "here:1")
    assert [spec.node_resource for spec in specs] == ["memory", "small", "large"]
    assert all(0 < spec.resources[str(spec.node_resource)] < 1 for spec in specs)


def test_services_get_the_ports_of_a_network_and_are_not_replaced_for_others() -> None:
    first, second = (plan(deployment(service_ports=ports), "here:1")[0] for ports in ("5-9", "6-9"))
    assert first.hints["ports"] == "5-9" and first == second


@pytest.mark.parametrize("ports", ["50100", "50100-", "a-b", "50100:50199"])
def test_ports_that_are_no_range_are_rejected(ports: str) -> None:
    with pytest.raises(ConfigError, match=f"service_ports: is '{ports}'"):
        deployment(service_ports=ports)


def test_a_drafter_that_looks_tokens_up_is_light() -> None:
    tier = {"engine": "suffix", "max_sequences": 9, "replicas": 2, "max_tokens": 4096}
    *drafters, target, _ = plan(deployment(drafter=tier, sub_drafter={"engine": "none"}), "here:1")
    assert [spec.replica for spec in drafters] == ["drafter-0", "drafter-1"]
    assert {spec.actor for spec in drafters} == {LOOKUP_DRAFTER} and target.role is Role.TARGET
    assert {(spec.num_cpus, spec.num_gpus, spec.shards) for spec in drafters} == {(0.5, 0.0, 1)}
    config = parse(SuffixConfig, dict(drafters[0].config), "drafter")
    assert (config.role, config.engine, config.max_sequences) == ("drafter", "suffix", 9)
    assert (config.max_tokens, config.max_draft) == (4096, 64)


def test_a_drafter_gets_the_cpus_that_all_replicas_request() -> None:
    _, drafter, *_ = plan(deployment(drafter={"model": "/m/small"}, sub_drafter={}), "here:1")
    # The sub-drafter, the drafter, two targets of 3 threads, and the router.
    assert drafter.hints["declared_cpus"] == 0.5 + 1 + 2 * 3 + 1


def test_more_targets_are_no_reason_to_replace_a_drafter() -> None:
    def drafter(num_targets: int) -> ReplicaSpec:
        target = {"model": "/m/big", "replicas": num_targets}
        return plan(deployment(target=target, drafter={"model": "/m/small"}), "here:1")[0]

    assert drafter(1) == drafter(2)
    assert drafter(1).hints != drafter(2).hints


@pytest.mark.parametrize(
    ("draft_ahead", "declared_cpus", "expected"),
    [("auto", 4, math.inf), ("auto", 4.5, 3), ("auto", None, 0), (True, None, math.inf), ("off", 1, 0)],
)
def test_drafting_ahead_takes_spare_cpus(
    draft_ahead: object, declared_cpus: float | None, expected: float
) -> None:
    data = {"model": "/m", "draft_ahead": draft_ahead, "declared_cpus": declared_cpus}
    config = parse(DrafterConfig, data, "drafter")
    assert config.ahead_sequences(usable_cpus=4) == expected
    assert config.limits.is_ahead_chosen is (draft_ahead == "auto")


def test_drafting_ahead_counts_all_cpus_where_the_system_has_no_affinity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    config = parse(DrafterConfig, {"model": "/m", "declared_cpus": 4.5}, "drafter")
    assert config.limits.ahead_sequences == 3


TIERS = {"drafter": {"model": "/m/small"}, "sub_drafter": {}}


def test_every_replica_serves_its_metrics_at_a_port_that_follows_from_its_name() -> None:
    def ports(replicas: int, port: int | None) -> dict[str, int | None]:
        target = {"model": "/m/big", "replicas": replicas}
        specs = plan(deployment(target=target, telemetry={"metrics_port": port}, **TIERS), "here:1")
        return {spec.replica: spec.config.get("telemetry", {}).get("metrics_port") for spec in specs}

    one = {"sub_drafter-0": 9700, "drafter-0": 9600, "target-0": 9500}
    assert ports(1, 9400) == one
    assert ports(2, 9400) == {**one, "target-1": 9501}
    assert set(ports(2, 0).values()) == {0}
    assert set(ports(2, None).values()) == {None}
    assert max(port for port in ports(101, 9400).values() if port) < 65_536


def test_where_a_network_opens_only_some_ports_every_replica_takes_the_first_free_of_its_tier() -> None:
    telemetry = {"metrics_port": 9400}
    specs = plan(deployment(telemetry=telemetry, service_ports="50100-50199", **TIERS), "here:1")
    sections = {spec.replica: spec.config["telemetry"] for spec in specs}
    assert {section["metrics_port"] for name, section in sections.items() if name.startswith("target")} == {
        9500
    }
    assert {section["metrics_ports"] for section in sections.values()} == {100}


def test_the_tiers_ports_must_follow_the_routers() -> None:
    with pytest.raises(ConfigError, match="metrics_port is 65500, at most 65136"):
        deployment(telemetry={"metrics_port": 65_500})
