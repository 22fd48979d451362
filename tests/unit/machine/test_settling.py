"""Numbers in the place of `auto`, and warnings of what a deployment leaves unused."""

from typing import Any

import pytest

from flyserve.core.errors import ConfigError
from flyserve.core.messages import ForwardCosts, Role
from orchestration.deployment.diff import changes
from orchestration.deployment.file import Deployment, RolloutConfig
from orchestration.deployment.plan import plan
from orchestration.deployment.tiers import ModelTier
from orchestration.machine.facts import ModelFacts, facts_of
from orchestration.machine.settling import (
    require_shared_memory,
    settled,
    settled_keys,
    settled_on_cluster,
    unused,
)
from services.common.config import parse
from services.common.machine.gpus import Gpu
from services.common.machine.machine import Machine
from services.engine.loading.threads import fastest_threads

_AUTO = {"gpus": "auto", "threads": "auto"}


def deployment(**sections: Any) -> Deployment:
    return parse(Deployment, sections, "test")


def machine(gpus: int = 0, cores: int = 16, **others: Any) -> Machine:
    return Machine(cores, gpus=tuple(Gpu(str(index)) for index in range(gpus)), has_cuda=True, **others)


def pair(target: dict[str, Any], drafter: dict[str, Any] | None = None) -> Deployment:
    named = {"target": {"model": "/a", **target}}
    return deployment(**named, **({} if drafter is None else {"drafter": {"model": "/b", **drafter}}))


def test_auto_is_a_value_of_the_file_and_up_has_numbers() -> None:
    facts = {Role.TARGET: ModelFacts(9000), Role.DRAFTER: ModelFacts(1000)}
    made = settled(pair(_AUTO, _AUTO), machine(), facts)
    target, drafter = made.target, made.drafter
    assert isinstance(drafter, ModelTier)
    assert (target.gpus, target.threads, target.max_threads) == (0, "auto", 14)
    assert (drafter.gpus, drafter.max_threads) == (0, 1)
    specs = {spec.role: spec for spec in plan(made, "here:1")}
    assert specs[Role.TARGET].num_cpus == 14 and specs[Role.TARGET].config["max_threads"] == 14


def test_numbers_of_the_file_stay() -> None:
    given = pair({"gpus": 0, "threads": 3}, {"gpus": "auto", "threads": "auto", "max_threads": 5})
    assert settled_keys(given, machine(2), {}) == {
        Role.TARGET: {},
        Role.DRAFTER: {"gpus": 1, "kv_tokens": "auto"},
    }
    given = pair({"gpus": "auto", "shards": 2, "kv_tokens": 4096})
    assert settled_keys(given, machine(8), {})[Role.TARGET] == {"gpus": 1, "replicas": 4}
    given = pair({"gpus": "auto", "autoscaling": {"min": 1, "max": 2}})
    assert settled_keys(given, machine(8), {})[Role.TARGET] == {"gpus": 1, "kv_tokens": "auto"}


def test_vllm_leaves_memory_to_the_other_tier_of_its_gpu() -> None:
    on_vllm = {"gpus": "auto", "engine": "vllm"}
    found = settled_keys(pair(on_vllm, on_vllm), machine(1), {})
    assert found[Role.TARGET] == {"gpus": 0.7, "engine_args": {"gpu_memory_utilization": 0.63}}
    assert found[Role.DRAFTER] == {"gpus": 0.3, "engine_args": {"gpu_memory_utilization": 0.27}}
    settled(pair(on_vllm, on_vllm), machine(1), {})  # the tiers accept it
    card = Machine(16, gpus=(Gpu("a", 24 * 10**9),), has_cuda=True)
    facts = {Role.TARGET: ModelFacts(16_060_000_000), Role.DRAFTER: ModelFacts(2_470_000_000)}
    found = settled_keys(pair(on_vllm, on_vllm), card, facts)
    assert [keys["engine_args"]["gpu_memory_utilization"] for keys in found.values()] == [0.7663, 0.1337]


def test_a_drafter_computes_in_float32_where_the_cpu_has_no_bfloat16() -> None:
    slow = machine(has_bfloat16=False)
    drafter = settled_keys(pair(_AUTO, _AUTO), slow, {})[Role.DRAFTER]
    assert drafter["dtype"] == "float32"
    found = settled_keys(pair(_AUTO, {**_AUTO, "dtype": "bfloat16"}), slow, {})
    assert "dtype" not in found[Role.DRAFTER] and "dtype" not in found[Role.TARGET]
    assert "dtype" not in settled_keys(pair(_AUTO, _AUTO), machine(), {})[Role.DRAFTER]


LLAMA_8B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "vocab_size": 128_256,
    "dtype": "bfloat16",
}
EIGHT_BILLION = facts_of(LLAMA_8B, 16 * 10**9)


def kv_tokens(
    tier: dict[str, Any], gigabytes: float, drafter: dict[str, Any] | None = None, with_amx: bool = True
) -> Any:
    limited = machine(memory_bytes=round(gigabytes * 1e9), has_matrix_units=with_amx)
    facts = {Role.TARGET: EIGHT_BILLION, Role.DRAFTER: facts_of(LLAMA_8B, 10**9)}
    return settled_keys(pair(tier, drafter), limited, facts)[Role.TARGET].get("kv_tokens")


def test_kv_memory_on_a_cpu_is_what_fits_beside_the_weights() -> None:
    assert EIGHT_BILLION.kv_bytes_as("bfloat16") == 131_072
    assert kv_tokens({}, 25.7) is None, "65,536 positions take 8.6 GB, and a process 1.1 GB"
    assert kv_tokens({}, 25.6) == 65_136
    assert kv_tokens({}, 20) == 22_400
    assert kv_tokens({"replicas": 2}, 38) == 14_784
    many = {"max_batch_tokens": 4096, "max_sequences": 256}
    assert kv_tokens(many, 21.5) == 5792, "logits of 4,096 rows take 4.2 GB"
    assert kv_tokens({"max_batch_tokens": 4096}, 21.5) == 29_840, "rows of prompts have no logits"
    assert kv_tokens({}, 22, {"model": "/b"}) == 10_960, "both tiers hold as many"
    assert kv_tokens({}, 22, {"model": "/b", "kv_tokens": 8192}) == 13_744
    assert kv_tokens({}, 17) == 4096, "the fewest may take what is kept free for a forward"
    assert kv_tokens({"dtype": "float32"}, 0) is None, "an unknown memory limits nothing"


def test_weights_and_kv_memory_have_the_type_that_the_cpu_computes_in() -> None:
    assert kv_tokens({}, 20, with_amx=False) == 22_400 // 2, "float32"
    assert kv_tokens({"shards": 2}, 21.1, with_amx=False) == kv_tokens({"shards": 2}, 21.1) == 22_688
    slow = machine(memory_bytes=24 * 10**9, has_bfloat16=False)
    facts = {Role.TARGET: EIGHT_BILLION, Role.DRAFTER: facts_of(LLAMA_8B, 10**9)}
    chosen, given = (
        settled_keys(pair(_AUTO, drafter), slow, facts)[Role.TARGET]["kv_tokens"]
        for drafter in (_AUTO, {**_AUTO, "dtype": "bfloat16"})
    )
    assert (given - chosen) * 2 * 262_144 == pytest.approx(10**9, rel=0.01), "its weights in float32"


@pytest.mark.parametrize(
    ("tier", "gigabytes", "message"),
    [
        (
            {},
            16.2,
            r"the weights and KV memory take 16\.5 GB .* 16\.0 GB and KV memory 0\.5 GB \(kv_tokens 4096\)",
        ),
        ({}, 8, r"but 8\.0 GB are available: use a smaller model"),
        ({"kv_tokens": 300_000}, 48, r"39\.3 GB \(kv_tokens 300000\).* are available: lower kv_tokens, use"),
        ({"replicas": 3, "kv_tokens": 4096}, 49, r"take 49\.6 GB"),
    ],
)
def test_weights_and_kv_memory_that_do_not_fit_are_rejected(
    tier: dict[str, Any], gigabytes: float, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        kv_tokens(tier, gigabytes)


def test_eight_bits_are_for_cpus() -> None:
    assert settled(pair({"gpus": "auto", "quantization": "int8"}), machine(8), {}).target.gpus == 0


def test_gpus_and_cores_that_are_not_used_are_warned_of() -> None:
    (gpus,) = unused(pair({"threads": 16}), machine(2))
    assert gpus.startswith("2 GPUs are not used: set gpus: auto")
    (gpus,) = unused(pair({"threads": 16}), Machine(16, gpus=(Gpu("a"),)))
    assert "built for CPUs alone" in gpus and gpus.startswith("1 GPU are")
    (cores,) = unused(pair({}, {"threads": 2}), machine())
    assert cores.startswith("3 of 16 cores compute: set threads: auto")
    assert not list(unused(pair({"gpus": 1}), machine(2)))
    assert not list(unused(settled(pair(_AUTO, _AUTO), machine(), {}), machine()))


@pytest.mark.parametrize(
    ("given", "gpus", "surge"),
    [
        (pair(_AUTO, _AUTO), 1, 0),
        (pair(_AUTO, _AUTO), 4, 0),
        (pair(_AUTO), 1, 0),
        (pair({"gpus": 1}), 2, 1),
        (pair({"gpus": 1, "shards": 2}), 3, 0),
        (pair({"gpus": 1}, {"gpus": 0.5}), 2, 0),
        (pair({"gpus": 1}, {}), 1, 0),
        (pair({"gpus": 1, "autoscaling": {"min": 1, "max": 2}}), 2, 0),
        (pair({"gpus": 1, "autoscaling": {"min": 1, "max": 2}}), 3, 1),
        (pair({"gpus": 0}, {"gpus": 0}), 1, 1),
        (pair({}), 0, 1),
    ],
)
def test_a_replica_ends_before_its_successor_where_no_gpu_is_left(
    given: Deployment, gpus: int, surge: int
) -> None:
    asked = given.model_copy(update={"rollout": RolloutConfig(surge=1)})
    assert settled(given, machine(gpus), {}).rollout.surge == surge
    assert settled(asked, machine(gpus), {}).rollout.surge == 1, "the file's number stays"


def test_on_a_cluster_only_one_node_decides_about_successors() -> None:
    one, many = pair({"gpus": 1}), pair(_AUTO)
    assert settled_on_cluster(one, [1.0]).rollout.surge == 0
    assert settled_on_cluster(many, [1.0]).rollout.surge == 0
    assert settled_on_cluster(one, [0.0]).rollout.surge == 1, "its GPUs are still to come"
    assert settled_on_cluster(one, [0.0, 1.0]).rollout.surge == 1, "a cluster may grow"


def test_a_tier_that_runs_on_gpus_stays_there_while_a_cluster_has_none() -> None:
    auto = pair(_AUTO, {"gpus": "auto"})
    first = settled_on_cluster(auto, [0.0, 2.0])
    assert not changes(first, settled_on_cluster(auto, [0.0], first))
    assert not changes(first, settled_on_cluster(auto, [], first))
    assert settled_on_cluster(auto, [0.0]).target.gpus == 0, "it runs nowhere yet"
    assert settled_on_cluster(pair({"gpus": 0}), [0.0], first).target.gpus == 0, "the file's number counts"
    waiting = pair(_AUTO, {"gpus": 1})
    on_cpu = settled_on_cluster(waiting, [0.0])
    assert on_cpu.target.gpus == 0
    assert not changes(on_cpu, settled_on_cluster(waiting, [0.0], on_cpu)), "each tier by itself"


def test_on_a_cluster_a_tier_that_must_have_no_gpu_gets_none() -> None:
    file = deployment(
        target={"model": "/a.gguf", "engine": "llamacpp", "gpus": "auto"},
        drafter={"model": "/b", "quantization": "int8", "gpus": "auto"},
    )
    on_gpus = pair(_AUTO, _AUTO)
    for running in (None, settled_on_cluster(on_gpus, [2.0])):
        made = settled_on_cluster(file, [0.0, 2.0], running)
        assert isinstance(made.drafter, ModelTier) and (made.target.gpus, made.drafter.gpus) == (0, 0)


def test_shards_on_gpus_need_shared_memory() -> None:
    shared = pair({"gpus": 1, "shards": 4})
    with pytest.raises(
        ConfigError, match=r"target.shards: 4 processes .* has 64 MB, at least 256 MB .*--shm-size"
    ):
        require_shared_memory(shared, machine(4, shm_bytes=64 << 20))
    require_shared_memory(shared, machine(4, shm_bytes=1 << 30))
    require_shared_memory(pair({"shards": 4}), machine(shm_bytes=0))


@pytest.mark.parametrize(
    ("seconds", "expected", "measured"),
    [
        ({8: 1.0, 4: 2.0}, 8, [8, 4]),
        ({8: 4.0, 4: 2.0, 2: 1.0, 1: 3.0}, 2, [8, 4, 2, 1]),
        ({2: 20.0, 1: 1.0}, 1, [2, 1]),  # a machine that others keep busy
        ({1: 1.0}, 1, [1]),
    ],
)
def test_the_fastest_number_of_threads_is_taken(
    seconds: dict[int, float], expected: int, measured: list[int]
) -> None:
    calls = []

    def measure(threads: int) -> ForwardCosts:
        calls.append(threads)
        return ForwardCosts(seconds[threads], seconds[threads])

    assert fastest_threads(max(seconds), measure) == (expected, ForwardCosts(*[seconds[expected]] * 2))
    assert calls == measured
