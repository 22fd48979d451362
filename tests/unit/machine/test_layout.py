"""The shares of a machine: GPUs and cores, divided among target and drafter."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flyserve.core.errors import ConfigError
from orchestration.control.gpus import fit_on_gpus
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
        (1, Demand(), Demand(replicas=2), ((0.7, 1, 1), (0.15, 1, 2))),
        (1, Demand(), Demand(replicas=4), ((0.7, 1, 1), (0.075, 1, 4))),
        (1, Demand(), Demand(gpus=0.5), ((0.5, 1, 1), (0.5, 1, 1))),
        (1, Demand(), Demand(gpus=0.1), ((0.9, 1, 1), (0.1, 1, 1))),
        (4, Demand(), Demand(gpus=0.6, replicas=3), ((1, 1, 1), (0.6, 1, 3))),
        (3, Demand(gpus=1.0, shards=2), Demand(), ((1, 2, 1), (1, 1, 1))),
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


@pytest.mark.parametrize(
    ("number", "target", "drafter", "message"),
    [
        (
            2,
            Demand(gpus=1.0, shards=2),
            Demand(),
            r"target\.gpus and drafter\.gpus: 2 x 1 \+ 1 x 1 = 3 GPUs do not fit on 2: lower gpus, shards",
        ),
        (3, Demand(gpus=0.6, replicas=3), Demand(), r"3 x 0\.6 \+ 1 x 1 = 2\.8 GPUs do not fit on 3"),
        (0, Demand(), Demand(gpus=0.5), r"1 x 0 \+ 1 x 0\.5 = 0\.5 GPUs do not fit on 0"),
        (
            1,
            Demand(),
            Demand(gpus=0.3, replicas=4),
            r"drafter\.gpus: 4 x 0\.3 = 1\.2 GPUs leave none to the target, of 1",
        ),
        (1, Demand(), Demand(gpus=0.5, replicas=2), r"drafter\.gpus: 2 x 0\.5 = 1 GPUs leave none"),
    ],
)
def test_tiers_that_ask_for_more_gpus_than_there_are_are_rejected_with_the_numbers(
    number: int, target: Demand, drafter: Demand, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        placed(number, target, drafter)


def test_the_weights_of_every_drafter_count_on_a_gpu_that_is_shared() -> None:
    target, size = Demand(weight_bytes=50 * _GB), 15 * _GB
    assert placed(1, target, Demand(weight_bytes=size))
    with pytest.raises(ConfigError, match=r"its weights take 80\.0 GB"):
        placed(1, target, Demand(weight_bytes=size, replicas=2))


def test_the_only_gpu_is_divided_by_the_weights_and_by_what_they_leave() -> None:
    def parts(memory_bytes: int, target: float, drafter: float) -> list[float]:
        sizes = (Demand(weight_bytes=round(size * _GB)) for size in (target, drafter))
        return [share.gpus for share in divide(gpus(1, memory_bytes), 16, *sizes) if share]

    assert parts(24 * _GB, 16.06, 2.47) == [0.8514, 0.1486]
    assert parts(80 * _GB, 16.06, 2.47) == [0.7454, 0.2546]
    assert parts(24 * _GB, 10, 10) == [0.5039, 0.4961]
    assert parts(80 * _GB, 67.3, 0.1) == [0.99, 0.01]


@given(st.integers(1, 80 * _GB), st.integers(0, 80 * _GB), st.integers(1, 8))
def test_weights_that_fit_on_the_only_gpu_fit_in_their_parts_of_it(
    target: int, drafter: int, replicas: int
) -> None:
    assume(target + max(drafter, 0.68 * _GB) * replicas <= 0.849 * 80 * _GB)
    shares = divide(gpus(1), 16, Demand(weight_bytes=target), Demand(weight_bytes=drafter, replicas=replicas))
    for share, weight_bytes in zip(shares, (target, drafter), strict=True):
        assert share is not None and weight_bytes <= 0.85 * share.gpus * 80 * _GB


def test_weights_that_do_not_fit_beside_the_part_of_a_drafter_are_rejected() -> None:
    assert placed(1, Demand(weight_bytes=34 * _GB), Demand(gpus=0.5))
    with pytest.raises(
        ConfigError,
        match=r"target\.gpus: is auto, which is 0\.5 of a GPU of 80\.0 GB here and holds weights of 34\.0 GB,"
        r" but the model's take 40\.0 GB: use a larger GPU",
    ):
        placed(1, Demand(weight_bytes=40 * _GB), Demand(gpus=0.5))


def test_a_drafter_is_rejected_if_its_weights_do_not_fit_on_its_own_gpu() -> None:
    assert placed(2, Demand(), Demand(weight_bytes=68 * _GB))
    with pytest.raises(
        ConfigError,
        match=r"drafter\.gpus: is auto, which is 1 of a GPU of 80\.0 GB here and holds weights of 68\.0 GB,"
        r" but the model's take 70\.0 GB: use a larger GPU, or a smaller or quantized model; gpus: 0",
    ):
        placed(2, Demand(), Demand(weight_bytes=70 * _GB))
    assert placed(2, Demand(), Demand(weight_bytes=70 * _GB, gpus=1.0)), "a number of the file stays"


_sizes = st.integers(0, 400 * _GB)
_counts = st.one_of(st.none(), st.integers(1, 8))
_targets = st.builds(
    Demand,
    weight_bytes=_sizes,
    divisors=st.lists(st.integers(1, 64), max_size=3).map(tuple),
    gpus=st.sampled_from([None, None, 0.4, 0.7, 1.0]),
    shards=_counts,
    replicas=_counts,
)
_drafters = st.one_of(
    st.none(),
    st.builds(
        Demand,
        weight_bytes=_sizes,
        gpus=st.sampled_from([None, None, 0.3, 0.5, 0.9]),
        shards=st.just(1),
        replicas=_counts,
    ),
)


@given(st.integers(0, 16), st.integers(1, 256), _targets, _drafters)
def test_no_gpu_is_promised_twice_and_no_tier_is_without_a_thread(
    number: int, cores: int, target: Demand, drafter: Demand | None
) -> None:
    is_auto = target.gpus is None
    assume(is_auto or (drafter is not None and drafter.gpus is None))
    try:
        shares = [share for share in divide(gpus(number), cores, target, drafter) if share is not None]
    except ConfigError:
        return
    assert fit_on_gpus(number, [asked for share in shares for asked in share.requests])
    assert round(sum(share.gpus * share.shards * share.replicas for share in shares), 4) <= number
    assert all(share.threads >= 1 for share in shares)
    first = shares[0]
    assert target.shards in (None, first.shards) and target.replicas in (None, first.replicas)
    if not is_auto:
        return
    assert not number or all(share.gpus for share in shares)  # where there are GPUs, each tier has its device
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
    assert computing <= max(cores - 1 if cores > 3 else cores + 1, replicas + drafter.threads)
    assert target.threads * replicas >= math.floor(cores / 2) - replicas


@pytest.mark.parametrize(
    ("cores", "weights", "expected"),
    [
        (1, (11, 4), (1, 1)),
        (2, (12, 3), (2, 1)),
        (8, (70, 8), (6, 1)),
        (64, (70, 8), (57, 6)),
        (3, (16, 1), (2, 1)),
        (4, (16, 1), (2, 1)),
        (4, (1, 1), (2, 1)),
        (8, (0, 0), (4, 3)),
        (16, (9, 1), (14, 1)),
    ],
)
def test_examples_of_threads(cores: int, weights: tuple[int, int], expected: tuple[int, int]) -> None:
    target, drafter = (Demand(weight_bytes=size) for size in weights)
    assert tuple(share.threads for share in divide([], cores, target, drafter) if share) == expected
