from pathlib import Path
from typing import Any

import pytest

from tests.chart.charts import rendered
from tools.chart import ChartError

HUB = {"model": "meta-llama/Llama-3.1-8B@main"}
CERTIFICATES = {
    role: f"certificate-{n}"
    for n, role in enumerate(("router", "controller", "target", "drafter", "sub_drafter"))
}
VLLM = {"engine": "vllm"}
GPUS = {"target": {"shards": 4, "gpus": 1}}

LOOKUP = {"engine": "suffix"}
"""A drafter without a model, and without the chart's own values for one."""

REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    # What the schema rejects.
    "unknown section": ({"tarhet": {"replicas": 2}}, ("tarhet",)),
    "misspelt key of a tier": ({"target": {"replica": 2}}, ("target", "replica")),
    "no replicas": ({"target": {"replicas": 0}}, ("target.replicas", "1")),
    "unknown dtype": ({"target": {"dtype": "float16"}}, ("target.dtype", "bfloat16")),
    "port beyond all": ({"router": {"grpc_port": 70000}}, ("router.grpc_port", "65535")),
    "unknown mode": ({"speculation": {"mode": "fast"}}, ("speculation.mode", "exact")),
    "pods that come and go": (
        {"ray": {"autoscaling": {"idleTimeoutSeconds": 30}}},
        ("ray.autoscaling.idleTimeoutSeconds", "300"),
    ),
    "address without a port": (
        {"ray": {"gcsFaultTolerance": {"redisAddress": "redis"}}},
        ("ray.gcsFaultTolerance.redisAddress",),
    ),
    # What does not go together.
    "a budget that blocks every drain": (
        {"pods": {"router": {"minAvailable": 2, "replicas": 2}}},
        ("pods.router.minAvailable: is 2", "only 2 routers", "below 2"),
    ),
    "alerts without metrics": (
        {"monitoring": {"alerts": {"enabled": True}}, "telemetry": {"metrics_port": None}},
        ("monitoring.alerts.enabled", "PrometheusRule"),
    ),
    "a drafter that looks tokens up, with a key of a model": (
        {"drafter": {"engine": "suffix", "dtype": "float32"}},
        (
            "drafter.dtype: engine suffix has no such key, only builtin, llamacpp, vllm",
            "set drafter.dtype to null",
        ),
    ),
    "a drafter that looks tokens up, with a sub-drafter": (
        {"drafter": LOOKUP, "sub_drafter": {"replicas": 1}},
        ("sub_drafter: helps a drafter that runs a model", "drafter.engine is suffix", "to null"),
    ),
    "a drafter that looks tokens up, on a GPU": (
        {"drafter": LOOKUP | {"gpus": 0.5}},
        ("drafter.gpus: engine suffix has no such key, only builtin, llamacpp, vllm", "drafter.gpus to null"),
    ),
    "an engine that is removed": (
        {"sub_drafter": {"engine": "ngram"}},
        ("sub_drafter.engine", '"suffix", "none"'),
    ),
    "a target that stops while no request waits for it": (
        {"target": {"autoscaling": {"min": 0, "max": 2}}},
        ("target.autoscaling.min: is 0", "router.replica_wait_s is not set", "such as 300"),
    ),
    "a drafter that stops while it is idle": (
        {"drafter": {"autoscaling": {"min": 0, "max": 2}}},
        ("drafter.autoscaling.min: is 0", "must be at least 1"),
    ),
    "a target without a model": (
        {"target": {"model": ""}},
        ("target.model: is empty, but the engine builtin runs one",),
    ),
    "shards without their GPUs": (
        {**GPUS, "pods": {"target": {"gpus": 2}}},
        ("pods.target.gpus: is 2", "take 4", "set pods.target.gpus to 4"),
    ),
    "GPUs that no replica uses": ({"pods": {"target": {"gpus": 8}}}, ("pods.target.gpus: is 8", "take 0")),
    "guests beyond the GPUs": (
        {
            "target": {"gpus": 1},
            "drafter": {"gpus": 0.5},
            "pods": {"target": {"gpus": 1}, "drafter": {"runsWith": "target"}},
        },
        ("pods.target.gpus: is 1", "take 2"),
    ),
    "shards that could share a GPU": (
        {"target": {"shards": 4, "gpus": 0.5}, "pods": {"target": {"gpus": 2}}},
        ("target.gpus: is 0.5, must be above 0.5 for each of the 4 processes", "set it to 1"),
    ),
    "processes of vLLM on parts of GPUs": (
        {"target": {**VLLM, "shards": 2, "gpus": 0.8}, "pods": {"target": {"gpus": 2}}},
        ("target.gpus: is 0.8, must be 1 for each of the 2 processes", "set it to 1"),
    ),
    "shards that need more GPUs than the sum": (
        {"target": {"shards": 4, "gpus": 0.6}, "pods": {"target": {"gpus": 3}}},
        ("pods.target.gpus: is 3", "take 4", "set pods.target.gpus to 4"),
    ),
    "guests that fit beside what is larger": (
        {
            "target": {"gpus": 0.8},
            "drafter": {"gpus": 0.2},
            "pods": {
                "target": {"runsWith": "drafter", "replicasPerPod": 4},
                "drafter": {"gpus": 5, "replicasPerPod": 4},
            },
        },
        ("pods.drafter.gpus: is 5", "take 4"),
    ),
    "guests for which each GPU has too little left": (
        {
            "target": {"gpus": 0.7},
            "drafter": {"gpus": 0.4},
            "pods": {
                "target": {"gpus": 2, "replicasPerPod": 2},
                "drafter": {"runsWith": "target", "replicasPerPod": 1},
            },
        },
        ("pods.target.gpus: is 2", "take 3"),
    ),
    "memory of a GPU on CPUs": (
        {"target": {"kv_tokens": "auto"}},
        ("target.kv_tokens: is auto", "target.gpus is 0, must be 1", "set kv_tokens to a number"),
    ),
    "memory of a GPU that is shared": (
        {"target": {"kv_tokens": "auto", "gpus": 0.7}, "pods": {"target": {"gpus": 1}}},
        ("target.kv_tokens: is auto", "target.gpus is 0.7, must be 1"),
    ),
    "fewest beyond most": (
        {"target": {"autoscaling": {"min": 3, "max": 2}}},
        ("target.autoscaling.min: is 3", "autoscaling.max of 2"),
    ),
    "replicas beyond their limits": (
        {"target": {"replicas": 9, "autoscaling": {"max": 4}}},
        ("target.replicas: is 9", "from 1 to 4"),
    ),
    "replicas that come without pods": (
        {
            "target": {"autoscaling": {"max": 4}},
            "ray": {"autoscaling": {"enabled": False}},
            "rollout": {"surge": 0},
        },
        ("target.autoscaling.max: is 4", "2 places", "set ray.autoscaling.enabled to true"),
    ),
    "replicas next to others without pods": (
        {"ray": {"autoscaling": {"enabled": False}}},
        ("rollout.surge: is 1", "ray.autoscaling.enabled is false", "set rollout.surge to 0"),
    ),
    "KV heads that shards do not divide": (
        {"target": {"shards": 3}, "models": {"kvHeads": 8}},
        ("target.shards: is 3", "8 KV heads", "divisor of 8"),
    ),
    "more guests than places": (
        {"drafter": {"replicas": 5}, "pods": {"drafter": {"runsWith": "target"}}},
        ("pods.drafter.replicasPerPod: is 1", "2 places", "5 replicas", "raise it"),
    ),
    "guest of a guest": (
        {"pods": {"drafter": {"runsWith": "sub_drafter"}, "sub_drafter": {"runsWith": "target"}}},
        ("pods.drafter.runsWith: is sub_drafter", "name a role that has"),
    ),
    "guest of itself": ({"pods": {"drafter": {"runsWith": "drafter"}}}, ("pods.drafter.runsWith", "itself")),
    "guest with GPUs of its own": (
        {"pods": {"drafter": {"runsWith": "target", "gpus": 1}}},
        ("pods.drafter.gpus: is 1", "pods.target.gpus"),
    ),
    "guest on vLLM in pods without it": (
        {"drafter": {**VLLM, "gpus": 0}, "pods": {"drafter": {"runsWith": "target"}}},
        ("pods.drafter.runsWith: is target", "no vLLM", "set target.engine to vllm"),
    ),
    "guest on the builtin engine in pods of vLLM": (
        {"target": VLLM, "pods": {"drafter": {"runsWith": "target"}}},
        ("pods.drafter.runsWith: is target", "without the builtin engine", "leave it empty"),
    ),
    "GPUs of a pipeline": (
        {
            "target": {**VLLM, "shards": 4, "gpus": 1, "engine_args": {"pipeline_parallel_size": 2}},
            "pods": {"target": {"gpus": 4}},
        },
        ("pods.target.gpus: is 4", "take 8", "set pods.target.gpus to 8"),
    ),
    "hub model without the hub": ({"target": HUB}, ("target.model", "models.hub.online")),
    "model on a volume that is not there": (
        {"drafter": {"model": "/models/drafter"}},
        ("drafter.model", "models.existingClaim"),
    ),
    "two volumes": (
        {"models": {"existingClaim": "weights", "persistence": {"size": "1Gi"}}},
        ("models.existingClaim", "keep one"),
    ),
    "carried beyond the window": (
        {"speculation": {"carry_after": 7}},
        ("speculation.carry_after: is 7", "window of 2"),
    ),
    "carried beyond the window of the deployment's own preset": (
        {"speculation": {"carry_after": 4, "preset": "own", "presets": {"own": {"window": 3}}}},
        ("speculation.carry_after: is 4", "window of 3"),
    ),
    "carried beyond a window that is given": (
        {"speculation": {"carry_after": 4, "window": 3}},
        ("speculation.carry_after: is 4", "window of 3"),
    ),
    "any free port": ({"router": {"grpc_port": 0}}, ("router", "grpc", "give a number")),
    "Secret without Redis": (
        {"ray": {"gcsFaultTolerance": {"passwordSecret": {"name": "redis"}}}},
        ("ray.gcsFaultTolerance.redisAddress", "host:port"),
    ),
    "TLS without a Secret": (
        {"security": {"tls": {}}},
        ("secrets.tls.router: is empty", "name the Secret", "of router.flyserve"),
    ),
    "TLS without the Secret of one role": (
        {"security": {"tls": {}}, "secrets": {"tls": {**CERTIFICATES, "sub_drafter": ""}}},
        ("secrets.tls.sub_drafter: is empty", "tls.crt, tls.key and ca.crt of sub-drafter.flyserve"),
    ),
    "Secrets of TLS without TLS": (
        {"secrets": {"tls": CERTIFICATES}},
        ("security.tls: is null", "secrets.tls.controller is certificate-1", "set security.tls to {}"),
    ),
    "TLS that probes cannot do": (
        {"security": {"tls": {}, "health_port": None}, "secrets": {"tls": CERTIFICATES}},
        ("security.health_port: is null", "give a port"),
    ),
    "health on a port that is taken": (
        {"security": {"tls": {}, "health_port": 8000}, "secrets": {"tls": CERTIFICATES}},
        ("the ports http and health are both 8000", "security.health_port"),
    ),
    "API keys without a Secret": (
        {"security": {"auth_tokens_file": "keys.yaml"}},
        ("secrets.authTokens: is empty", "name the Secret"),
    ),
    "a Secret of API keys that no key names": (
        {"secrets": {"authTokens": "keys"}},
        ("security.auth_tokens_file: is null", "accepts every client"),
    ),
    "API keys by a path": (
        {"security": {"auth_tokens_file": "/etc/keys.yaml"}, "secrets": {"authTokens": "keys"}},
        ("security.auth_tokens_file", "pattern"),
    ),
    "two clusters of one colour": (
        {"ray": {"standby": {"name": "blue"}}},
        ("ray.standby.name: is blue", "green"),
    ),
    "image of a cluster that is not there": (
        {"ray": {"standby": {"image": {"tag": "2"}}}},
        ("ray.standby.image", "ray.standby.name"),
    ),
    "routers at least beyond at most": (
        {"pods": {"router": {"autoscaling": {"enabled": True, "minReplicas": 9, "maxReplicas": 3}}}},
        ("pods.router.autoscaling.minReplicas: is 9", "maxReplicas"),
    ),
    "ServiceMonitor without its operator": (
        {"monitoring": {"serviceMonitor": {"enabled": True}}},
        ("monitoring.serviceMonitor.enabled", "Prometheus operator"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_values_that_cannot_work_are_rejected_with_key_and_remedy(case: str, tmp_path: Path) -> None:
    values, parts = REFUSED[case]
    with pytest.raises(ChartError) as rejection:
        rendered(tmp_path, values)
    assert all(part in str(rejection.value) for part in parts), rejection.value


def test_a_cluster_without_kuberay_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ChartError, match=r"ray\.io/v1: .* install the KubeRay operator"):
        rendered(tmp_path, api_versions=())


def test_without_a_drafter_nobody_drafts(tmp_path: Path) -> None:
    manifests = rendered(tmp_path, {"drafter": None})
    (cluster,) = (m for m in manifests if m["kind"] == "RayCluster")
    assert [group["groupName"] for group in cluster["spec"]["workerGroupSpecs"]] == ["target"]
