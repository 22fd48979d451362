"""Settle what a deployment leaves to its machine (`auto`); find what does not fit, or is unused. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flyserve.core.errors import ConfigError
from flyserve.core.messages import VERIFIED_TOKENS, Role
from orchestration.control.gpus import fit_on_gpus
from orchestration.deployment.file import Deployment
from orchestration.deployment.scaling import at_its_largest
from orchestration.deployment.tiers import BuiltinTier, LlamaCppTier, ModelTier, VllmTier
from orchestration.machine.facts import ModelFacts
from orchestration.machine.layout import Demand, Share, divide
from orchestration.machine.memory import MemoryUse, fitting_kv_tokens, working_bytes
from services.common.config import parse
from services.common.machine.gpus import Gpu
from services.common.machine.machine import Machine, usable_cores
from services.drafter.config import DraftingSection
from services.engine.config import AUTO, Dtype, Quantization, is_widened
from services.engine.vllm_args import MEMORY_ARGUMENTS

Facts = Mapping[Role, ModelFacts]
"""Properties of the models of a deployment, by tier."""
Keys = Mapping[Role, Mapping[str, Any]]
"""Keys of tiers, and their values."""

_UNKNOWN = ModelFacts()
_SHM_BYTES = 64 << 20
"""Shared memory that each of several processes of a model on GPUs exchanges data in."""


def settled(deployment: Deployment, machine: Machine, facts: Facts) -> Deployment:
    """Return the deployment with a number for every `auto` of a tier, as `settled_keys` says."""
    changes = settled_keys(deployment, machine, facts)
    tiers = {
        role.value: parse(type(tier), tier.model_dump(mode="json") | dict(changes[role]), role.value)
        for role, tier in _model_tiers(deployment).items()
    }
    return _with_rollout(deployment.model_copy(update=tiers), len(machine.usable_gpus))


def settled_rollout(deployment: Deployment, num_gpus: float) -> dict[str, int]:
    """Return `surge` as 0 where one machine's GPUs hold all replicas, but not one successor more.

    With a surge, a replacement would wait for a GPU for ever. A number of the file stays.
    """
    tiers, largest = _model_tiers(deployment), _model_tiers(at_its_largest(deployment))
    successors = [_gpus(tier, 1) for tier in largest.values() if tier.num_gpus]
    running = [asked for tier in largest.values() for asked in _gpus(tier, tier.replicas)]
    has_room = all(fit_on_gpus(num_gpus, running + one) for one in successors)
    fits = fit_on_gpus(num_gpus, [asked for tier in tiers.values() for asked in _gpus(tier, tier.replicas)])
    is_open = "surge" not in deployment.rollout.model_fields_set
    return {"surge": 0} if is_open and fits and not has_room else {}


def settled_keys(deployment: Deployment, machine: Machine, facts: Facts) -> Keys:
    """Return the keys of each tier that the machine decides; shards and replicas only where none are set.

    Raises:
        ConfigError: A model does not fit, or the machine has too few GPUs.
    """
    tiers = _model_tiers(deployment)
    demands = {role: _demand(tier, facts.get(role, _UNKNOWN)) for role, tier in tiers.items()}
    target, drafter = demands[Role.TARGET], demands.get(Role.DRAFTER)
    both = divide(machine.usable_gpus, machine.cores, target, drafter)
    shares = {role: share for role, share in zip(Role, both, strict=False) if share is not None}
    found = {role: dict(_keys(tier, shares[role], machine)) for role, tier in tiers.items()}
    on_cpu = [
        _use(role, tier, facts.get(role, _UNKNOWN), shares[role], found[role], machine)
        for role, tier in tiers.items()
        if not shares[role].gpus
    ]
    for role, kv_tokens in fitting_kv_tokens(on_cpu, machine).items():
        found[role]["kv_tokens"] = kv_tokens
    return found


def settled_on_cluster(
    deployment: Deployment, gpus_of_nodes: Sequence[float], running: Deployment | None = None
) -> Deployment:
    """Return the deployment with `gpus: auto` as 1 on a cluster with GPUs, else 0; threads stay `auto`.

    It is also 1 for a tier that is `running` on GPUs: their nodes may be lost, or removed while no replica
    needs them, and come only if one requests a GPU. It is 0 for a tier that must have none. A cluster of one
    node is a machine, which cannot grow: `surge` is settled, too.
    """
    before = {} if running is None else _model_tiers(running)
    has_gpus = sum(gpus_of_nodes) > 0
    given = _model_tiers(deployment)
    gpus = {
        role: float(not _is_on_cpu(tier) and (has_gpus or (role in before and before[role].num_gpus > 0)))
        for role, tier in given.items()
    }
    tiers = {
        role.value: parse(type(tier), tier.model_dump(mode="json") | {"gpus": gpus[role]}, role.value)
        for role, tier in given.items()
        if tier.gpus == AUTO
    }
    made = deployment.model_copy(update=tiers)
    return _with_rollout(made, gpus_of_nodes[0]) if len(gpus_of_nodes) == 1 else made


def unused_on_cluster(deployment: Deployment, gpus_of_nodes: Sequence[float]) -> Iterator[str]:
    """Yield the lines of `unused`; cores are compared on the only node alone, which this process is on."""
    gpus = tuple(Gpu("") for _ in range(int(sum(gpus_of_nodes))))
    cores = usable_cores() if len(gpus_of_nodes) == 1 else 0
    return unused(deployment, Machine(cores, gpus=gpus, has_cuda=True))


def unused(deployment: Deployment, machine: Machine) -> Iterator[str]:
    """Yield a line for each part of the machine that a settled deployment leaves unused, with the remedy."""
    tiers = _model_tiers(deployment).values()
    is_on_gpus = any(tier.num_gpus for tier in tiers)
    if machine.gpus and not is_on_gpus:
        number = f"{len(machine.gpus)} GPU{'s' * (len(machine.gpus) > 1)}"
        remedy = "set gpus: auto for target and drafter (flyserve serve: --gpus auto)"
        if not machine.has_cuda:
            remedy = "torch is missing or built for CPUs alone: install a build with CUDA, then " + remedy
        yield f"{number} are not used: {remedy}"
    threads = sum(tier.declared_threads * tier.num_processes * tier.replicas for tier in tiers)
    if not is_on_gpus and threads < machine.cores - 1 and AUTO not in {tier.threads for tier in tiers}:
        yield (
            f"{threads} of {machine.cores} cores compute: set threads: auto for target and drafter"
            " (flyserve serve: --threads auto)"
        )


def require_shared_memory(deployment: Deployment, machine: Machine) -> None:
    """Raise ConfigError if the processes of a model on GPUs have too little shared memory for each other."""
    for role, tier in _model_tiers(deployment).items():
        needed = _SHM_BYTES * tier.num_processes
        if tier.num_gpus and tier.num_processes > 1 and (machine.shm_bytes or needed) < needed:
            raise ConfigError(
                f"{role}.shards: {tier.num_processes} processes exchange data in /dev/shm, which has"
                f" {(machine.shm_bytes or 0) >> 20} MB, at least {needed >> 20} MB are needed: in a container"
                " set --shm-size=1g (docker) or an emptyDir of medium Memory at /dev/shm (Kubernetes)"
            )


def _with_rollout(deployment: Deployment, num_gpus: float) -> Deployment:
    rollout = deployment.rollout.model_copy(update=settled_rollout(deployment, num_gpus))
    return deployment.model_copy(update={"rollout": rollout})


def _gpus(tier: ModelTier, replicas: int) -> list[float]:
    """Return the GPUs that each process of this number of replicas requests."""
    return [tier.num_gpus] * (tier.num_processes * replicas)


def _model_tiers(deployment: Deployment) -> dict[Role, ModelTier]:
    return {role: tier for role, tier in deployment.tiers.items() if isinstance(tier, ModelTier)}


def _is_on_cpu(tier: ModelTier) -> bool:
    """Return True if the engine or the quantization of a tier allows no GPUs."""
    is_quantized = isinstance(tier, BuiltinTier) and tier.quantization is not Quantization.NONE
    return is_quantized or isinstance(tier, LlamaCppTier)


def _demand(tier: ModelTier, facts: ModelFacts) -> Demand:
    given = tier.model_fields_set
    quantization = tier.quantization.value if isinstance(tier, BuiltinTier) else "none"
    can_share = "shards" in type(tier).model_fields and not _is_on_cpu(tier)
    is_fixed = not can_share or "shards" in given or tier.autoscaling is not None
    # vLLM may keep them quantized, as a GGUF file does.
    dtype = "stored" if isinstance(tier, VllmTier | LlamaCppTier) else tier.dtype.value
    return Demand(
        weight_bytes=facts.bytes_as(dtype, quantization),
        divisors=facts.divisors,
        gpus=None if tier.gpus == AUTO and not _is_on_cpu(tier) else tier.num_gpus,
        threads=tier.max_threads if tier.threads == AUTO else tier.threads,
        shards=tier.num_processes if is_fixed else None,
        replicas=tier.replicas if "replicas" in given or tier.autoscaling is not None else None,
    )


def _keys(tier: ModelTier, share: Share, machine: Machine) -> Iterator[tuple[str, Any]]:
    """Yield the keys that were left to the machine, with what follows from them."""
    if tier.threads == AUTO and tier.max_threads is None:
        yield "max_threads", share.threads
    if tier.gpus != AUTO:
        return
    yield "gpus", int(share.gpus) if share.gpus.is_integer() else share.gpus
    for key, value in (("shards", share.shards), ("replicas", share.replicas)):
        if value > 1 and key not in tier.model_fields_set:
            yield key, value
    is_slow = not share.gpus and not machine.has_bfloat16
    if isinstance(tier, DraftingSection) and is_slow and "dtype" not in tier.model_fields_set:
        yield "dtype", "float32"  # a small model, whose tokens no response depends on in mode exact
    if isinstance(tier, BuiltinTier) and share.gpus == 1 and "kv_tokens" not in tier.model_fields_set:
        yield "kv_tokens", AUTO
    if not isinstance(tier, VllmTier) or share.gpus in (0, 1):
        return
    if not tier.engine_args.keys() & set(MEMORY_ARGUMENTS):
        yield "engine_args", {**tier.engine_args, MEMORY_ARGUMENTS[0]: round(0.9 * share.gpus, 4)}


def _use(
    role: Role, tier: ModelTier, facts: ModelFacts, share: Share, keys: Mapping[str, Any], machine: Machine
) -> MemoryUse:
    """Return the memory that a tier on the CPU takes; vLLM sizes its KV memory by itself."""
    kv_tokens = tier.kv_tokens if isinstance(tier, BuiltinTier) and tier.kv_tokens != AUTO else 0
    dtype = Dtype(keys.get("dtype", tier.dtype))
    logit_rows = min(tier.batch_tokens, tier.max_sequences * VERIFIED_TOKENS)
    computed = tier.model_copy(update={"dtype": dtype})
    kv_dtype = Dtype.FLOAT32 if is_widened(dtype, share.shards, machine.has_matrix_units) else dtype
    return MemoryUse(
        role=role,
        model=str(tier.model),
        weight_bytes=_demand(computed, facts).weight_bytes * share.replicas,
        position_bytes=facts.kv_bytes_as(kv_dtype.value) * share.replicas,
        working_bytes=working_bytes(logit_rows, facts.vocab_size) * share.shards * share.replicas,
        kv_tokens=int(kv_tokens),
        is_fixed="kv_tokens" in tier.model_fields_set,
    )
