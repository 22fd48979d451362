"""Each step of `flyserve upgrade` renders, changes no running pod, and moves routers in the second one."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestration.release.values import Values, as_installed, layered, merged, plan, with_tag
from tests.chart.charts import Manifest, one, rendered
from tests.support.kubernetes_api import kubernetes_api
from tools.chart import CHART, NAMESPACE, ChartError

DEFAULTS: Values = yaml.safe_load((CHART / "values.yaml").read_text())
CHANGES: dict[str, tuple[Values, Values]] = {
    "image": ({"image": {"tag": "1"}}, {"image": {"tag": "2"}}),
    "Ray": ({}, {"ray": {"version": "2.61.0"}, "image": {"tag": "2"}}),
    "size, and back to the chart's own": (
        {"target": {"threads": 2}, "pods": {"target": {"resources": {"limits": {"memory": "9Gi"}}}}},
        {"target": {"replicas": 3}},
    ),
    "a tier that ends and another model": (
        {},
        {"image": {"tag": "2"}, "sub_drafter": None, "target": {"model": "demo/models/drafter"}},
    ),
    "a tier that begins": ({"drafter": None}, {"drafter": {"threads": 2}, "image": {"tag": "2"}}),
    "vLLM": (
        {"image": {"tag": "1"}},
        {"image": {"tag": "1"}, "target": {"engine": "vllm"}},
    ),
    "images of roles": (
        {
            "image": {"tag": "1"},
            "pods": {"target": {"image": {"tag": "1-mine"}, "tolerations": [{"key": "a"}]}},
        },
        {"image": {"tag": "2"}, "pods": {"router": {"image": {"tag": "2-slim"}}}},
    ),
    "fault tolerance": ({}, {"ray": {"gcsFaultTolerance": {"redisAddress": "redis:6379"}}}),
    "Ray's token": ({}, {"ray": {"authSecret": "mine"}}),
    "users of pods": ({}, {"image": {"tag": "2"}, "podSecurityContext": {"runAsUser": None}}),
    "settings of routers as well": ({}, {"image": {"tag": "2"}, "router": {"max_queued": 5}}),
}


def clusters(manifests: list[Manifest]) -> dict[str, Manifest]:
    return {m["metadata"]["name"]: m for m in manifests if m["kind"] == "RayCluster"}


def router(manifests: list[Manifest]) -> Any:
    return one(manifests, "Deployment")["spec"]["template"]


@pytest.mark.parametrize("case", CHANGES)
def test_every_step_keeps_the_pods_that_run(case: str, tmp_path: Path) -> None:
    keep_pods(*CHANGES[case], DEFAULTS, {}, tmp_path)


def test_a_chart_with_other_defaults_keeps_them_too(tmp_path: Path) -> None:
    """The old chart lacks a section, and has keys that the new one refuses, and another limit."""
    differing = {"pods": {"head": {"resources": {"limits": {"cpu": "3"}}}}, "target": {"max_sequences": 8}}
    old = layered(DEFAULTS, layered(differing, {"retired": {"enabled": True}, "apply": {"retired": 5}}))
    del old["checks"]
    keep_pods({"drafter": None}, {"image": {"tag": "2"}}, old, differing, tmp_path)


def keep_pods(before: Values, after: Values, old: Values, differing: Values, tmp_path: Path) -> None:
    """Follow the steps of an upgrade from a chart with the defaults `old`.

    `differing` are values of this chart that make of it what that one is.
    """

    def upgraded(live: list[Manifest], values: Values) -> list[Manifest]:
        with kubernetes_api(list(clusters(live).values()), NAMESPACE) as server:
            return rendered(tmp_path, values, more=("--dry-run=server", "--kube-apiserver", server))

    installed = rendered(tmp_path, layered(differing, before))
    with pytest.raises(ChartError, match="would mix"):
        upgraded(installed, after)

    whole = (as_installed(DEFAULTS, merged(old, before), before), merged(DEFAULTS, after))
    steps = plan(*(with_tag(values, "0.1.0") for values in whole), after, DEFAULTS)
    beside = upgraded(installed, steps.beside)
    swapped = upgraded(beside, steps.swapped)
    alone = upgraded(swapped, steps.alone)

    blue, green = "demo-flyserve-blue", "demo-flyserve-green"
    assert clusters(beside)[blue] == clusters(installed)[blue]
    # The second one is what an installation with the new values has.
    target = rendered(tmp_path, layered(after, {"ray": {"active": "green"}}))
    assert clusters(beside)[green] == clusters(target)[green]
    assert clusters(swapped) == clusters(beside)
    assert clusters(alone) == {green: clusters(beside)[green]}
    # Routers move in the second step alone.
    assert router(beside) == router(installed)
    assert router(alone) == router(swapped) == router(target) != router(installed)
