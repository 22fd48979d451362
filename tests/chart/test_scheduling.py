"""Every example finds its nodes and volumes, on clusters of any number of nodes."""

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.chart.charts import Manifest, objects, one, pod_templates, rendered
from tools.chart import ChartError
from tools.chart_goldens import EXAMPLES, RENDERED

GPU = "nvidia.com/gpu"
TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}
HUB = {"model": "meta-llama/Llama-3.1-8B@main"}
ONE_NODE = {"persistence": {"size": "50Gi", "accessMode": "ReadWriteOnce"}}
ONLINE = {**ONE_NODE, "hub": {"online": True}}


@dataclass
class Node:
    """A node; those with GPUs are tainted, as cloud providers do."""

    name: str
    gpus: int
    is_tainted: bool = True

    def accepts(self, spec: Manifest) -> bool:
        assert not {"nodeSelector", "affinity"} & spec.keys(), "not simulated"
        tolerated = any(_tolerates(toleration) for toleration in spec.get("tolerations", ()))
        return self.gpus >= _gpus(spec) and (tolerated or not self.is_tainted)


@dataclass
class Cluster:
    """A scheduler that knows no volumes, and volumes that one node at a time can attach."""

    nodes: list[Node]
    one_node_claims: set[str]
    attached: dict[str, str] = field(default_factory=dict)

    def start(self, pod: Manifest, chance: random.Random) -> str:
        """Return the reason why the pod does not start; empty if it does."""
        spec = pod["spec"]
        possible = [node for node in self.nodes if node.accepts(spec)]
        if not possible:
            return "no node"
        node = chance.choice(possible)
        node.gpus -= _gpus(spec)
        for claim in _claims(spec) & self.one_node_claims:
            if self.attached.setdefault(claim, node.name) != node.name:
                return f"{claim} is attached to another node"
        return ""


def _tolerates(toleration: dict[str, str]) -> bool:
    return toleration.get("key", GPU) == GPU and toleration.get("effect", "NoSchedule") == TAINT["effect"]


def _gpus(spec: Manifest) -> int:
    return sum(int(c["resources"].get("limits", {}).get(GPU, 0)) for c in spec["containers"])


def _claims(spec: Manifest) -> set[str]:
    volumes = spec.get("volumes", ())
    return {v["persistentVolumeClaim"]["claimName"] for v in volumes if "persistentVolumeClaim" in v}


def pods(manifests: list[Manifest]) -> Iterator[Manifest]:
    """Yield every pod that there can be at once."""
    for manifest in manifests:
        if manifest["kind"] == "RayCluster":
            yield manifest["spec"]["headGroupSpec"]["template"]
            for group in manifest["spec"]["workerGroupSpecs"]:
                yield from [group["template"]] * group["maxReplicas"]
        else:
            number = manifest["spec"].get("replicas", 2) if manifest["kind"] == "Deployment" else 1
            yield from pod_templates([manifest]) * number


def faults(manifests: list[Manifest], num_nodes: int, seed: int) -> dict[str, str]:
    """Return the roles whose pods wait for ever, with the reason; starts and nodes are drawn by chance."""
    chance = random.Random(seed)
    access = {
        m["metadata"]["name"]: m["spec"]["accessModes"]
        for m in manifests
        if m["kind"] == "PersistentVolumeClaim"
    }
    nodes = [Node(f"cpu-{n}", 0, False) for n in range(num_nodes)]
    nodes += [Node(f"gpu-{n}", 8) for n in range(num_nodes)]
    cluster = Cluster(nodes, {name for name, modes in access.items() if "ReadWriteMany" not in modes})
    waiting = list(pods(manifests))
    chance.shuffle(waiting)
    reasons = {pod["metadata"]["labels"]["flyserve.io/role"]: cluster.start(pod, chance) for pod in waiting}
    return {role: reason for role, reason in reasons.items() if reason}


@pytest.mark.parametrize("num_nodes", [1, 2, 5])
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_no_example_waits_for_ever(example: Path, num_nodes: int) -> None:
    manifests = objects((RENDERED / example.name).read_text())
    assert len(list(pods(manifests))) >= 6
    for seed in range(20):
        assert faults(manifests, num_nodes, seed) == {}


def test_the_simulation_sees_a_volume_that_two_nodes_want() -> None:
    manifests = copy.deepcopy(objects((RENDERED / "one-gpu.yaml").read_text()))
    (target,) = (g["template"] for g in one(manifests, "RayCluster")["spec"]["workerGroupSpecs"][:1])
    (volume,) = (v for v in target["spec"]["volumes"] if "persistentVolumeClaim" in v)
    router = one(manifests, "Deployment")["spec"]["template"]["spec"]
    router["volumes"].append(volume)
    assert any("attached" in "".join(faults(manifests, 2, seed).values()) for seed in range(20))
    del target["spec"]["tolerations"]
    assert faults(manifests, 2, 0)["target"] == "no node"


def mounting(manifests: list[Manifest]) -> dict[str, bool]:
    """Return the roles whose pods mount the claim, and whether they only read it."""
    found = {}
    for pod in pod_templates(manifests):
        mounts = [m for c in pod["spec"]["containers"] for m in c["volumeMounts"] if m["name"] == "models"]
        assert bool(mounts) == bool(_claims(pod["spec"]))
        if mounts:
            found[pod["metadata"]["labels"]["flyserve.io/role"]] = mounts[0]["readOnly"]
    return found


SHARED = {"existingClaim": "weights"}
LOOKUP = {"drafter": {"engine": "suffix"}}
FOLDERS = {"target": {"model": "/models/big"}, "drafter": {"model": "/models/small"}}


@pytest.mark.parametrize(
    ("values", "mounted"),
    [
        # Models of the image.
        ({"models": SHARED}, {}),
        # Routers fetch the tokenizer themselves if they may.
        ({"target": HUB, "models": {**SHARED, "hub": {"online": True}}}, {"target": False}),
        ({"target": HUB, "models": SHARED}, {"target": True, "router": True}),
        ({**FOLDERS, "models": SHARED}, {"target": True, "drafter": True, "router": True}),
        (
            {**FOLDERS, "pods": {"drafter": {"runsWith": "target"}}, "models": SHARED},
            {"target": True, "router": True},
        ),
        ({"router": {"chat_template": "/models/chat.jinja"}, "models": SHARED}, {"router": True}),
        (
            {**LOOKUP, "target": HUB, "models": SHARED},
            {"target": True, "router": True},
        ),
    ],
)
def test_only_pods_that_read_models_mount_them(
    values: dict[str, Any], mounted: dict[str, bool], tmp_path: Path
) -> None:
    assert mounting(rendered(tmp_path, values)) == mounted


def test_only_pods_that_read_the_hub_have_its_token(tmp_path: Path) -> None:
    hub = {"online": True, "tokenSecret": {"name": "hub"}}
    manifests = rendered(tmp_path, {"target": HUB, "models": {**SHARED, "hub": hub}})
    found = {
        pod["metadata"]["labels"]["flyserve.io/role"]: {v["name"] for v in container.get("env", ())}
        for pod in pod_templates(manifests)
        for container in pod["spec"]["containers"]
    }
    assert {role for role, names in found.items() if "HF_TOKEN" in names} == {"router", "target"}


SINGLE = {"target": {**HUB, "replicas": 1}, "drafter": None, "sub_drafter": None, "rollout": {"surge": 0}}


def test_a_volume_of_one_node_serves_one_pod(tmp_path: Path) -> None:
    assert mounting(rendered(tmp_path, {**SINGLE, "models": ONLINE})) == {"target": False}


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"models": ONE_NODE}, ("routers would read the tokenizer", "models.hub.online")),
        ({"models": ONLINE, "drafter": HUB}, ("pods of target and drafter", "pods.<role>.runsWith")),
        ({"models": ONLINE, "rollout": {"surge": 1}}, ("2 pods of target", "rollout.surge 0")),
        (
            {"models": ONLINE, "ray": {"standby": {"name": "green"}}},
            ("2 pods of target", "no ray.standby"),
        ),
    ],
)
def test_a_volume_of_one_node_that_several_pods_mount_is_rejected(
    values: dict[str, Any], parts: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(ChartError) as rejection:
        rendered(tmp_path, {**SINGLE, **values})
    for part in ("models.persistence.accessMode: is ReadWriteOnce", "ReadWriteMany", *parts):
        assert part in str(rejection.value)
