"""The limits of the pods follow from the limits of the replicas."""

from pathlib import Path
from typing import Any

import pytest

from orchestration.deployment.autoscaling import Autoscaling
from tests.chart.charts import one, rendered
from tools.chart import ChartError

FOUR_GPUS = {
    "target": {"replicas": 2, "shards": 4, "gpus": 1, "autoscaling": {"min": 1, "max": 3}},
    "pods": {"target": {"gpus": 4}},
}
PAIRS = {
    "drafter": {"replicas": 3, "autoscaling": {"min": 3, "max": 8}},
    "pods": {"drafter": {"replicasPerPod": 2}},
}


def groups(folder: Path, values: Any) -> dict[str, tuple[int, ...]]:
    """Return the fewest and most pods of each group, and between them the number that they are set to."""
    spec = one(rendered(folder, values), "RayCluster")["spec"]
    keys = ("minReplicas", "replicas", "maxReplicas")
    return {g["groupName"]: tuple(g[key] for key in keys if key in g) for g in spec["workerGroupSpecs"]}


@pytest.mark.parametrize(
    ("values", "group", "pods"),
    [
        ({}, "target", (2, 3)),
        # One pod beyond the most for `rollout.surge`.
        (FOUR_GPUS, "target", (1, 4)),
        ({**FOUR_GPUS, "rollout": {"surge": 0}}, "target", (1, 3)),
        ({"target": {"autoscaling": {"max": 5}}}, "target", (1, 6)),
        (
            {"target": {"autoscaling": {"min": 0, "max": 5}}, "router": {"replica_wait_s": 300}},
            "target",
            (0, 6),
        ),
        # Two replicas in a pod: three take two, eight take four.
        (PAIRS, "drafter", (2, 5)),
        ({"sub_drafter": {"replicas": 2}}, "sub-drafter", (2, 3)),
    ],
)
def test_pods_go_from_the_fewest_replicas_to_the_most_and_their_number_is_the_autoscaler_s(
    values: Any, group: str, pods: tuple[int, int], tmp_path: Path
) -> None:
    assert groups(tmp_path, values)[group] == pods


def test_guests_come_and_go_within_the_pods_that_there_always_are(tmp_path: Path) -> None:
    values = {
        "drafter": {"replicas": 1, "autoscaling": {"min": 1, "max": 4}},
        "pods": {"drafter": {"runsWith": "target", "replicasPerPod": 2}},
    }
    assert groups(tmp_path, values) == {"target": (2, 3), "sub-drafter": (1, 2)}


def test_ray_s_autoscaler_is_on_and_has_what_it_needs(tmp_path: Path) -> None:
    spec = one(rendered(tmp_path), "RayCluster")["spec"]
    options = spec["autoscalerOptions"]
    assert spec["enableInTreeAutoscaling"] is True
    assert (options["version"], options["idleTimeoutSeconds"]) == ("v2", 600)
    # It outlasts the delay by which the controller lets replicas go.
    assert options["idleTimeoutSeconds"] > Autoscaling(max=1).downscale_delay_s
    # It writes its log where Ray's head writes, and nowhere else.
    head = spec["headGroupSpec"]["template"]["spec"]
    assert {mount["name"] for mount in options["volumeMounts"]} <= {v["name"] for v in head["volumes"]}
    assert head["restartPolicy"] == "Never"


def test_without_it_pods_stay_as_they_are(tmp_path: Path) -> None:
    values = {"ray": {"autoscaling": {"enabled": False}}, "rollout": {"surge": 0}}
    cluster = one(rendered(tmp_path, values), "RayCluster")
    assert cluster["spec"]["enableInTreeAutoscaling"] is False
    assert "autoscalerOptions" not in cluster["spec"]
    # Nothing in the head calls Kubernetes then.
    assert cluster["spec"]["headGroupSpec"]["template"]["spec"]["automountServiceAccountToken"] is False
    assert groups(tmp_path, values)["target"] == (2, 2, 2)


def test_a_sub_drafter_has_no_load_to_follow(tmp_path: Path) -> None:
    with pytest.raises(ChartError, match=r"sub_drafter.*autoscaling"):
        rendered(tmp_path, {"sub_drafter": {"autoscaling": {"max": 2}}})
