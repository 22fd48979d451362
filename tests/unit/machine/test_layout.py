"""The shares of a machine: GPUs and cores, divided among target and drafter."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.errors import ConfigError
from orchestration.machine.layout import Demand, divide
from services.common.machine.gpus import Gpu

_HEADS = (64, 8, 28_672)
_GB = 10**9


def gpus(number: int, memory_bytes: int = 80 * _GB, parent: str = "") -> list[Gpu]:
    return [Gpu(f"GPU-{index}", memory_bytes, parent) for index in range(number)]


def placed(number: int, target: Demand, drafter: Demand | None = None) -> tuple[object, ...]:
    shares = divide(gpus(number), 16, target, drafter)
    return tuple(share and (share.gpus, share.shards, share.replicas) for share in shares)


@pytest.mark.parametrize(
    ("number", "target", "drafter", "expected"),
    [
        (8, Demand(divisors=_HEADS), None, ((1, 8, 1), None)),
        (3, Demand(divisors=_HEADS), None, ((1, 1, 3), None)),
        (8, Demand(divisors=(9, 3)), None, ((1, 1, 8), None)),
        (8, Demand(divisors=_HEADS), Demand(shards=1), ((1, 1, 7), (1, 1, 1))),
        (8, Demand(divisors=_HEADS, weight_bytes=100 * _GB), Demand(shards=1), ((1, 2, 3), (1, 1, 1))),
        (5, Demand(divisors=_HEADS), Demand(shards=1), ((1, 4, 1), (1, 1, 1))),
        (8, Demand(divisors=_HEADS, replicas=2), None, ((1, 4, 2), None)),
        (8, Demand(divisors=_HEADS, shards=2), None, ((1, 2, 4), None)),
        (1, Demand(), Demand(shards=1), ((0.7, 1, 1), (0.3, 1, 1))),
        (1, Demand(), None, ((1, 1, 1), None)),
        (0, Demand(replicas=2), Demand(shards=1), ((0, 1, 2), (0, 1, 1))),
        (8, Demand(gpus=0.0, shards=1), Demand(gpus=0.5), ((0, 1, 1), (0.5, 1, 1))),
    ],
)
def test_gpus_are_shared(number: int, target: Demand, drafter: Demand | None, expected: object) -> None:
    assert placed(number, target, drafter) == expected


def test_instances_of_a_gpu_hold_replicas_because_they_have_no_collectives() -> None:
    share, _ = divide(gpus(4, 10 * _GB, "GPU-x"), 16, Demand(divisors=_HEADS), None)
    assert (share.shards, share.replicas) == (1, 4)


@pytest.mark.parametrize(
    ("number", "target", "drafter"),
    [
        (2, Demand(weight_bytes=200 * _GB, divisors=_HEADS), None),
        (1, Demand(weight_bytes=60 * _GB), Demand(weight_bytes=16 * _GB)),
        (8, Demand(shards=3, divisors=_HEADS), None),
        (2, Demand(shards=2, replicas=2, divisors=_HEADS), None),
        (1, Demand(replicas=2), Demand(shards=1)),
    ],
)
def test_a_target_without_room_is_rejected_with_the_remedy(
    number: int, target: Demand, drafter: Demand | None
) -> None:
    with pytest.raises(ConfigError, match=r"target: .* cannot be placed on .* GPUs: .*--gpus 0 computes"):
        placed(number, target, drafter)


_sizes = st.integers(0, 400 * _GB)
_counts = st.one_of(st.none(), st.integers(1, 8))
_targets = st.builds(
    Demand,
    weight_bytes=_sizes,
    divisors=st.lists(st.integers(1, 64), max_size=3).map(tuple),
    shards=_counts,
    replicas=_counts,
)
_drafters = st.one_of(st.none(), st.builds(Demand, weight_bytes=_sizes, shards=st.just(1)))


@given(st.integers(0, 16), st.integers(1, 256), _targets, _drafters)
def test_no_gpu_is_promised_twice_and_no_tier_is_without_a_thread(
    number: int, cores: int, target: Demand, drafter: Demand | None
) -> None:
    try:
        shares = [share for share in divide(gpus(number), cores, target, drafter) if share is not None]
    except ConfigError:
        return
    assert sum(share.gpus * share.shards * share.replicas for share in shares) <= number
    assert all(share.threads >= 1 for share in shares)
    assert not number or all(share.gpus for share in shares)  # where there are GPUs, each tier has its device
    first = shares[0]
    assert target.shards in (None, first.shards) and target.replicas in (None, first.replicas)
    if first.gpus == 1:
        assert not any(each % first.shards for each in target.divisors)
        assert target.weight_bytes / first.shards <= 80 * _GB


@given(st.integers(1, 256), _sizes, _sizes, st.integers(1, 4))
def test_cores_are_shared_by_the_weights_that_a_token_reads(
    cores: int, large: int, small: int, replicas: int
) -> None:
    large, small = max(large, small, 1), min(large, small)
    target, drafter = divide(
        [], cores, Demand(weight_bytes=large, replicas=replicas), Demand(weight_bytes=small)
    )
    assert drafter is not None
    computing = target.threads * replicas + drafter.threads
    assert computing <= max(cores + 1, replicas + drafter.threads)
    assert target.threads * replicas >= math.floor(cores / 2) - replicas


@pytest.mark.parametrize(
    ("cores", "weights", "expected"),
    [
        (1, (11, 4), (1, 1)),
        (2, (12, 3), (2, 1)),
        (8, (70, 8), (6, 1)),
        (64, (70, 8), (57, 6)),
        (8, (0, 0), (4, 4)),
    ],
)
def test_examples_of_threads(cores: int, weights: tuple[int, int], expected: tuple[int, int]) -> None:
    target, drafter = (Demand(weight_bytes=size) for size in weights)
    assert tuple(share.threads for share in divide([], cores, target, drafter) if share) == expected
