"""Divide a machine's GPUs and cores among the tiers that run a model. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flyserve.core.errors import ConfigError
from orchestration.control.gpus import fit_on_gpus
from services.common.machine.gpus import Gpu

_FOR_WEIGHTS = 0.85
"""Share of a GPU's memory that weights may take; KV memory and forwards need the rest."""
_DRAFTER_SHARE = 0.3
"""Share of all drafters in what the weights of both tiers leave of the only GPU."""
_LEAST_PART = 0.01
"""Smallest part of a GPU for a process of a drafter."""
_DIGITS = 4
"""Decimal places in which Ray counts GPUs."""
_IN_TURNS = 2
"""Cores on which a target and a small drafter take turns. Of two cores none is left to the router and the
event loops: they would take half of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One tier with a model, as far as it matters for its share of a machine.

    Attributes:
        weight_bytes: Weights in memory, as they are computed; 0 if unknown.
        divisors: Numbers that the shards must divide, such as those of the attention heads.
        gpus: GPUs of each process; None lets the machine decide.
        threads: The same of its most threads.
        shards: The same of its processes; 1 for a tier that cannot be shared.
        replicas: The same of its replicas.
    """

    weight_bytes: int = 0
    divisors: tuple[int, ...] = ()
    gpus: float | None = None
    threads: int | None = None
    shards: int | None = None
    replicas: int | None = None

    @property
    def fixed(self) -> tuple[int, int]:
        """Shards and replicas where nothing else asks for more."""
        return self.shards or 1, self.replicas or 1


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a machine that a tier gets.

    Attributes:
        gpus: GPUs of each process.
        threads: Most threads of each process.
        shards: Processes of each replica.
    """

    gpus: float
    shards: int
    replicas: int
    threads: int = 1

    @property
    def requests(self) -> list[float]:
        """GPUs of each of its processes."""
        return [self.gpus] * (self.shards * self.replicas)


def divide(
    gpus: Sequence[Gpu], cores: int, target: Demand, drafter: Demand | None
) -> tuple[Share, Share | None]:
    """Return the shares of target and drafter.

    A drafter gets a GPU of its own if there are two or more. The target is one model over all the others if
    its heads allow as many shards, else as many replicas as use the most of them.

    Raises:
        ConfigError: A tier needs more GPUs than there are, or than its weights fit on.
    """
    helped = None if drafter is None else _drafter_gpus(gpus, target, drafter)
    placed = _target_gpus(gpus, helped, target, drafter)
    demands = [(target, placed), *([(drafter, helped)] if drafter and helped else [])]
    if any(demand.gpus is None for demand, _ in demands):
        _require_room(len(gpus), placed, helped)
    for name, (demand, share) in zip(("target", "drafter"), demands, strict=False):
        _require_memory(name, gpus, demand, share)
    threads = _threads(cores, demands)
    shares = [
        Share(share.gpus, share.shards, share.replicas, each)
        for (_, share), each in zip(demands, threads, strict=True)
    ]
    return shares[0], shares[1] if drafter else None


def _drafter_gpus(gpus: Sequence[Gpu], target: Demand, drafter: Demand) -> Share:
    shards, replicas = drafter.fixed
    if drafter.gpus is not None:
        return Share(drafter.gpus, shards, replicas)
    if len(gpus) >= 2:
        return Share(1.0, shards, replicas)
    is_shared = len(gpus) == 1 and target.gpus is None
    return Share(_drafter_part(gpus[0], target, drafter) if is_shared else 0.0, shards, replicas)


def _drafter_part(gpu: Gpu, target: Demand, drafter: Demand) -> float:
    """Return the part of the only GPU for each drafter: its weights, and some of what those of all leave.

    The target gets the rest. So the weights of each fit in its part if those of all fit on the GPU.
    """
    replicas = drafter.fixed[1]
    room = _FOR_WEIGHTS * gpu.memory_bytes
    left = max(0.0, room - target.weight_bytes - drafter.weight_bytes * replicas)
    extra = _DRAFTER_SHARE * (left / room if room else 1) / replicas
    part, scale = extra + (drafter.weight_bytes / room if room else 0), 10.0**_DIGITS
    return max(_LEAST_PART, math.ceil(round(part * scale, 2 * _DIGITS)) / scale)


def _target_gpus(gpus: Sequence[Gpu], helped: Share | None, target: Demand, drafter: Demand | None) -> Share:
    if target.gpus is not None or not gpus:
        return Share(target.gpus or 0.0, *target.fixed)
    taken = round(sum(helped.requests), _DIGITS) if helped else 0.0
    if 0 < taken < 1 and len(gpus) == 1:
        other_bytes = drafter.weight_bytes * helped.replicas if drafter and helped else 0
        together = replace(target, weight_bytes=target.weight_bytes + other_bytes)
        if target.fixed != (1, 1) or not _fits(gpus, 1, together):
            raise ConfigError(_no_room(gpus, 1, together))
        return Share(round(1 - taken, _DIGITS), *target.fixed)
    requests = helped.requests if helped else []
    free = max((left for left in range(len(gpus) + 1) if fit_on_gpus(len(gpus) - left, requests)), default=0)
    if free < 1:
        raise ConfigError(_crowded(len(gpus), None, helped))
    options = [each for each in _options(gpus, free, target) if math.prod(each) <= free]
    if not options:
        raise ConfigError(_no_room(gpus, free, target))
    shards, replicas = max(options, key=lambda each: (math.prod(each), each[0]))
    return Share(1.0, shards, replicas)


def _require_room(number: int, target: Share, drafter: Share | None) -> None:
    """Raise ConfigError if the processes of both tiers do not fit on the GPUs together."""
    if not fit_on_gpus(number, target.requests + (drafter.requests if drafter else [])):
        raise ConfigError(_crowded(number, target, drafter))


def _require_memory(name: str, gpus: Sequence[Gpu], tier: Demand, share: Share) -> None:
    """Raise ConfigError if weights do not fit in the part of a GPU that the machine gives their tier."""
    if tier.gpus is not None or not share.gpus or _fits(gpus, share.shards, tier, share.gpus):
        return
    smallest = min(gpu.memory_bytes for gpu in gpus)
    raise ConfigError(
        f"{name}.gpus: is auto, which is {share.gpus:g} of a GPU of {smallest / 1e9:.1f} GB here and holds"
        f" weights of {_FOR_WEIGHTS * share.gpus * smallest / 1e9:.1f} GB, but the model's take"
        f" {tier.weight_bytes / share.shards / 1e9:.1f} GB: use a larger GPU, or a smaller or quantized"
        " model; gpus: 0 computes on the CPU"
    )


def _options(gpus: Sequence[Gpu], free: int, target: Demand) -> Iterator[tuple[int, int]]:
    """Yield the shards and replicas that the model allows, each process with a GPU of its own."""
    for shards in range(1, free + 1) if target.shards is None else [target.shards]:
        can_share = shards == 1 or not any(gpu.parent for gpu in gpus)  # no collectives among MIG instances
        if can_share and _fits(gpus, shards, target) and not any(each % shards for each in target.divisors):
            yield shards, target.replicas or max(1, free // shards)


def _fits(gpus: Sequence[Gpu], shards: int, tier: Demand, part: float = 1.0) -> bool:
    """Check that the weights of each shard fit in a part of the smallest GPU."""
    smallest = min(gpu.memory_bytes for gpu in gpus)
    return not smallest or tier.weight_bytes / shards <= _FOR_WEIGHTS * part * smallest


def _no_room(gpus: Sequence[Gpu], free: int, target: Demand) -> str:
    """Return the reason why the target has no place on these GPUs, and the remedy."""
    smallest = min(gpu.memory_bytes for gpu in gpus)
    shards, replicas = target.fixed
    asked = f"shards {shards} and replicas {replicas}" if target.shards or target.replicas else "it"
    return (
        f"target: {asked} cannot be placed on {free} free GPUs: its weights take"
        f" {target.weight_bytes / 1e9:.1f} GB, of which a GPU of {smallest / 1e9:.1f} GB holds"
        f" {_FOR_WEIGHTS * smallest / 1e9:.1f} GB, and shards must divide"
        f" {', '.join(map(str, target.divisors)) or 'nothing'}: use more or larger GPUs, a smaller or"
        " quantized model, or other shards and replicas; --gpus 0 computes on the CPU"
    )


def _crowded(number: int, target: Share | None, drafter: Share | None) -> str:
    """Return the GPUs that the tiers ask for, and the limit; no target stands for one without a place."""
    shares = {"target": target, "drafter": drafter}
    asked = {f"{name}.gpus": share for name, share in shares.items() if share}
    parts = (f"{len(share.requests)} x {share.gpus:g}" for share in asked.values())
    total = sum(sum(share.requests) for share in asked.values())
    fault = "do not fit on" if target else "leave none to the target, of"
    return (
        f"{' and '.join(asked)}: {' + '.join(parts)} = {total:g} GPUs {fault} {number}:"
        " lower gpus, shards or replicas, or use more GPUs; gpus: 0 computes on the CPU"
    )


def _threads(cores: int, demands: Sequence[tuple[Demand, Share]]) -> list[int]:
    """Return the threads of each process: cores in proportion to the weights that a token reads.

    Every process has one at least, and the target gets what the drafter leaves.
    """
    left = max(cores - 1, min(cores, _IN_TURNS))
    in_turns, threads = left <= _IN_TURNS, list[int]()
    weights = [0 if share.gpus else demand.weight_bytes or 1 for demand, share in demands]
    for index, (_, share) in reversed([*enumerate(demands)]):
        part = math.ceil(left * weights[index] / max(1, sum(weights[: index + 1])) - 0.5)
        processes = share.shards * share.replicas
        threads.insert(0, max(1, part // processes))
        left -= part if in_turns or share.gpus else threads[0] * processes
    return [demand.threads or each for (demand, _), each in zip(demands, threads, strict=True)]
