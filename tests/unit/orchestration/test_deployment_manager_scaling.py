"""The number of replicas of a deployment manager: scaled by hand and by the load, within the limits."""

from typing import Any

import pytest

from flyserve.core.errors import ConfigError
from flyserve.core.messages import Load, Role
from orchestration.control.status import ReplicaState
from orchestration.deployment.file import Deployment
from tests.unit.orchestration.manager_rig import FILE, Scene, deployment


@pytest.mark.parametrize(
    ("replicas", "message"),
    [
        ({Role.TARGET: -1}, "target.replicas: is -1: must be at least 0"),
        ({Role.TARGET: 0}, "target.replicas: is 0: .* at least 1; an idle target .* autoscaling.min: 0"),
        ({Role.TARGET: 2000}, "target.replicas: is 2000: must be at most 1024"),
        ({Role.DRAFTER: 2}, "drafter: default has no such tier"),
    ],
)
async def test_a_scale_beyond_the_limits_is_rejected(
    scene: Scene, replicas: dict[Role, int], message: str
) -> None:
    await scene.manager.apply(deployment(), FILE)
    with pytest.raises(ConfigError, match=message):
        await scene.manager.scale(replicas)


async def test_a_scale_that_does_not_fit_is_refused_with_the_arithmetic_unless_forced(scene: Scene) -> None:
    drafter = {"model": "/m/small", "threads": 3}
    await scene.manager.apply(deployment(drafter=drafter), FILE)
    message = (
        r"target=20: there is room for 13: 20 x 1 = 20 CPUs, and the nodes have 16, 3 of them for other"
        r" tiers; scale to less, add nodes, or pass --force"
    )
    with pytest.raises(ConfigError, match=message):
        await scene.manager.scale({Role.TARGET: 20})
    (change,) = await scene.manager.scale({Role.TARGET: 13})
    assert str(change).startswith("target.replicas: 2 -> 13")
    assert await scene.manager.scale({Role.TARGET: 20}, is_forced=True)
    assert await scene.manager.scale({Role.TARGET: 19}), "fewer are always accepted"


def autoscaled(**settings: Any) -> Deployment:
    how = {"min": 1, "max": 3, "upscale_delay_s": 0.5, "downscale_delay_s": 1, **settings}
    return deployment(target={"model": "/m/big", "max_sequences": 4, "autoscaling": how})


def set_load(scene: Scene, **sequences: int) -> None:
    """Set the sequences of each instance, such as `target_1=3`; the others have none."""
    for name, replica in scene.fleet.replicas.items():
        number = sequences.get(name.partition(".")[0].replace("-", "_"), 0)
        replica.load = Load(sequences=number, kv_capacity=100)


async def test_the_load_adds_replicas_and_drains_the_least_loaded(scene: Scene) -> None:
    await scene.manager.apply(autoscaled(), FILE)
    await scene.until_ready("target-0.1")
    set_load(scene, target_0=12)
    rows = await scene.until_ready("target-0.1", "target-1.1", "target-2.1")
    (tier,) = (await scene.manager.status()).tiers
    assert tier.autoscaling is not None
    assert (tier.desired, tier.autoscaling.min, tier.autoscaling.max) == (3, 1, 3)
    assert tier.autoscaling.reason.endswith("at the maximum")
    assert not (await scene.manager.apply(autoscaled(), FILE)).changes, (
        "applying the file again must not undo it"
    )
    set_load(scene, target_0=12, target_1=2)
    await scene.until(lambda rows: rows["target-1.1"].load.sequences == 2)
    set_load(scene, target_1=2)
    after = await scene.until_ready("target-1.1")
    assert after["target-1.1"].address == rows["target-1.1"].address
    assert scene.fleet.replicas["target-0.1"].drained_within_s is not None
    set_load(scene, target_1=12)
    await scene.until(lambda rows: {"target-1.1"} < rows.keys() and len(rows) == 3)


async def test_scaling_by_hand_stays_within_the_limits_and_autoscaling_continues_from_there(
    scene: Scene,
) -> None:
    await scene.manager.apply(autoscaled(), FILE)
    await scene.until_ready("target-0.1")
    assert await scene.manager.scale({Role.TARGET: 3})
    await scene.until_ready("target-0.1", "target-1.1", "target-2.1")
    await scene.until_ready("target-0.1")
    with pytest.raises(ConfigError, match=r"target.replicas: is 4: must be within autoscaling.min 1 and .*3"):
        await scene.manager.scale({Role.TARGET: 4})
    report = await scene.manager.apply(autoscaled(min=2), FILE)
    assert [str(change) for change in report.changes] == [
        "target.autoscaling.min: 1 -> 2 (applies at once)",
        "target.replicas: 1 -> 2 (scales the tier)",
    ]


async def test_an_idle_target_is_stopped_and_started_for_requests_that_wait(scene: Scene) -> None:
    how = {"min": 0, "max": 3, "downscale_delay_s": 1}
    target = {"model": "/m/big", "max_sequences": 4, "autoscaling": how}
    await scene.manager.apply(deployment(target=target, router={"replica_wait_s": 60}), FILE)
    await scene.until_ready("target-0.1")
    await scene.until(lambda rows: not rows)
    (tier,) = (await scene.manager.status()).tiers
    assert (tier.desired, tier.ready) == (0, 0)
    assert tier.autoscaling is not None and tier.autoscaling.reason.startswith("stopped while idle")
    scene.manager.registry.report("a-router", waiting=6)
    await scene.until(lambda rows: len(rows) == 3)
    await scene.until(lambda rows: any(row.state is ReplicaState.READY for row in rows.values()))
