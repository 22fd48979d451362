"""Odd values are refused with a remedy, or rendered as objects that Kubernetes takes."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.chart.charts import objects, one, rendered
from tools.chart import RAY_API, ChartError, template

ON_VLLM = {
    "target": {"engine": "vllm"},
    "image": {"digest": f"sha256:{'a' * 64}"},
    "pods": {"target": {"image": {"digest": f"sha256:{'b' * 64}"}}},
}
REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "metrics on the services' ports": (
        {"telemetry": {"metrics_port": 50000}},
        ("telemetry.metrics_port: is 50000", "50100 to 50399", "50100 to 50199", "below 49701"),
    ),
    "metrics that end on them": ({"telemetry": {"metrics_port": 49701}}, ("49801 to 50100",)),
    "metrics beyond all ports": ({"telemetry": {"metrics_port": 65137}}, ("65237 to 65536", "beyond 65535")),
    "metrics on the ports of Ray's workers": (
        {"telemetry": {"metrics_port": 9700}},
        ("metrics_port: is 9700", "9800 to 10099", "Ray has 10001 to 19999", "below 9602"),
    ),
    "metrics on the port of Ray's agent": ({"telemetry": {"metrics_port": 52000}}, ("52365",)),
    "KEDA without limits": (
        {"pods": {"router": {"keda": {"prometheus": "http://p:9090"}}}},
        ("pods.router.keda.prometheus: is http://p:9090", "autoscaling.enabled is false"),
    ),
    "models in an image and in a claim": (
        {"models": {"ociImage": "r/m:1", "existingClaim": "weights"}},
        ("models.ociImage: is r/m:1", "keep one of"),
    ),
    "models in an image and from the hub": (
        {"models": {"ociImage": "r/m:1", "hub": {"online": True}}},
        ("models.hub.online: is true", "cannot be written"),
    ),
    "models in an image on an old cluster": (
        {"models": {"ociImage": "r/m:1"}, "target": {"model": "/models/a"}},
        ("models.ociImage: this cluster is Kubernetes v1.32", "1.35 or later", "--kube-version"),
    ),
    "a name with a dot": ({"fullnameOverride": "a.b"}, ("fullnameOverride", "a.b", "letter first")),
    "a name with a digit first": ({"fullnameOverride": "1abc"}, ("fullnameOverride", "1abc")),
    "a schedule in words": (
        {"apply": {"repeatSchedule": "never"}},
        ("apply.repeatSchedule: is never", "*/10"),
    ),
    "a schedule of four fields": ({"apply": {"repeatSchedule": "* * * *"}}, ("five fields",)),
    "a minute that no hour has": ({"apply": {"repeatSchedule": "60 * * * *"}}, ("is 60 * * * *",)),
    "a collector without a scheme": (
        {"telemetry": {"otlp_endpoint": "collector"}},
        ("otlp_endpoint", "http"),
    ),
    "a user of Redis without a password": (
        {"ray": {"gcsFaultTolerance": {"redisAddress": "r:1", "usernameSecret": {"name": "u"}}}},
        ("passwordSecret.name: is empty", "usernameSecret.name"),
    ),
    "a password in the address": (
        {"ray": {"gcsFaultTolerance": {"redisAddress": "redis://me:word@r:1"}}},
        ("ray.gcsFaultTolerance.redisAddress",),
    ),
    "Redis and RocksDB": (
        {"ray": {"gcsFaultTolerance": {"redisAddress": "r:1", "rocksdb": {"enabled": True}}}},
        ("rocksdb.enabled: is true", "redisAddress is set", "keep one"),
    ),
    "values of a cluster that is not there": (
        {"ray": {"standby": {"values": {"target": {"threads": 2}}}}},
        ("ray.standby.values: is set without ray.standby.name",),
    ),
    "values that a cluster cannot have": (
        {"ray": {"standby": {"name": "green", "values": {"router": {"max_queued": 1}}}}},
        ("ray.standby.values", "router"),
    ),
    "a misspelt value of a cluster": (
        {"ray": {"standby": {"name": "green", "values": {"target": {"thread": 2}}}}},
        ("ray.standby.values.target", "thread"),
    ),
    "a request of memory above the limit of the chart": (
        {"pods": {"target": {"resources": {"requests": {"memory": "8Gi"}}}}},
        ("pods.target.resources.requests.memory: is 8Gi", "pods.target.resources.limits.memory of 3Gi"),
    ),
    "a limit of memory below the request of the chart": (
        {"pods": {"test": {"resources": {"limits": {"memory": "128Mi"}}}}},
        ("pods.test.resources.requests.memory: is 256Mi", "pods.test.resources.limits.memory of 128Mi"),
    ),
    "a limit of CPUs below those of the replicas": (
        {"target": {"threads": 4}, "pods": {"target": {"resources": {"limits": {"cpu": "2500m"}}}}},
        ("pods.target.resources.requests.cpu: is 4", "pods.target.resources.limits.cpu of 2500m", "threads"),
    ),
    "a limit of CPUs below those of the replicas of a second cluster": (
        {
            "pods": {"drafter": {"resources": {"limits": {"cpu": 2}}}},
            "ray": {"standby": {"name": "green", "values": {"drafter": {"threads": 3}}}},
        },
        ("pods.drafter.resources.requests.cpu: is 3", "pods.drafter.resources.limits.cpu of 2"),
    ),
    "a digest of a second cluster on vLLM": (
        {
            **ON_VLLM,
            "ray": {"standby": {"name": "green", "image": {"digest": f"sha256:{'c' * 64}"}}},
        },
        (
            "ray.standby.image.digest: is the image without vLLM",
            "image.digest and pods.target.image.digest in ray.standby.values",
        ),
    ),
    "a second cluster whose GPUs do not fit": (
        {"ray": {"standby": {"name": "green", "values": {"target": {"gpus": 1}}}}},
        ("pods.target.gpus: is 0", "take 1"),
    ),
}
RENDERED: dict[str, dict[str, Any]] = {
    "metrics below the services": {"telemetry": {"metrics_port": 49700}},
    "metrics above the services": {"telemetry": {"metrics_port": 50100}},
    "the last metrics": {"telemetry": {"metrics_port": 65136}},
    "names of days": {"apply": {"repeatSchedule": "0,30 2-4 1 jan,feb mon-fri"}},
    "a macro": {"apply": {"repeatSchedule": "@hourly"}},
    "no schedule": {"apply": {"repeatSchedule": ""}},
    "empty resources": {"pods": {"target": {"resources": {}}}},
    "no resources": {"pods": {role: {"resources": None} for role in ("target", "head", "router", "apply")}},
    "requests that equal the limits": {
        "target": {"threads": 2},
        "pods": {
            "router": {"resources": {"requests": {"cpu": "700m"}, "limits": {"cpu": "0.7"}}},
            "target": {
                "resources": {"requests": {"memory": "1Gi"}, "limits": {"cpu": 2, "memory": 1073741824}}
            },
        },
    },
    "digests of a second cluster on vLLM": {
        **ON_VLLM,
        "ray": {
            "standby": {
                "name": "green",
                "values": {
                    "image": {"digest": f"sha256:{'c' * 64}"},
                    "pods": {"target": {"image": {"digest": f"sha256:{'d' * 64}"}}},
                },
            }
        },
    },
    "a long name": {"fullnameOverride": "a" * 53},
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_value_that_cannot_work_is_refused_with_a_remedy(case: str, tmp_path: Path) -> None:
    values, parts = REFUSED[case]
    with pytest.raises(ChartError) as refusal:
        rendered(tmp_path, values)
    assert all(part in str(refusal.value) for part in parts), refusal.value


@pytest.mark.parametrize("case", RENDERED)
def test_a_value_at_the_edge_makes_valid_objects(case: str, tmp_path: Path) -> None:
    manifests = rendered(tmp_path, RENDERED[case])
    for manifest in manifests:
        if manifest["apiVersion"] != RAY_API:
            kubernetes_validate.validate(manifest, "1.34", strict=True)


def test_empty_resources_are_those_of_the_chart_and_null_requests_the_cpus_alone(tmp_path: Path) -> None:
    def resources(values: Any) -> Any:
        group = one(rendered(tmp_path, values), "RayCluster")["spec"]["workerGroupSpecs"][0]
        return group["template"]["spec"]["containers"][0]["resources"]

    assert resources(RENDERED["empty resources"]) == resources({})
    assert resources(RENDERED["no resources"]) == {"requests": {"cpu": "1"}}


def test_a_release_whose_name_no_service_may_have_is_refused_with_a_remedy() -> None:
    with pytest.raises(ChartError, match=r"fullnameOverride: .* 7b-flyserve, .*letter first"):
        template(release="7b")


def test_a_fraction_on_the_command_line_is_a_number_with_set_json() -> None:
    with pytest.raises(ChartError, match=r"target\.gpus"):
        template(more=("--set", "target.gpus=0.6"))
    flags = ("--set-json", "target.gpus=0.6", "--set", "pods.target.gpus=1")
    (target, *_) = one(objects(template(more=flags)), "RayCluster")["spec"]["workerGroupSpecs"]
    assert target["rayStartParams"]["num-gpus"] == "1"
