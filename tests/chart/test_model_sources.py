"""Places that models come from: names that are rejected, Jobs that fill the volume, space of nodes' disks."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from flyserve.cli.pull import pull
from tests.chart.charts import Manifest, deployments, one, pod_templates, rendered
from tests.chart.test_configuration import read_arguments
from tools.chart import ChartError

LLAMA = {"source": "hf://meta-llama/Llama-3.1-8B@0123abc", "folder": "llama"}
SMALL = {"source": "hf://org/small@main", "folder": "small"}
VOLUME = {"persistence": {"size": "100Gi"}}
FETCHED: dict[str, Any] = {
    "target": {"model": "/models/llama"},
    "drafter": {"model": "/models/small"},
    "models": {**VOLUME, "fetch": {"models": [LLAMA, SMALL]}, "hub": {"tokenSecret": {"name": "hub"}}},
}
BUCKET = {"source": "s3://bucket/llama", "folder": "llama"}
OWN_IMAGE = {"fetch": {"image": {"repository": "here/flyserve-s3"}}}
HUB = {"target": {"model": "org/name@main"}}
SHIPPED = {"drafter": {"model": "demo/models/drafter"}}


def jobs(manifests: list[Manifest]) -> list[Manifest]:
    return [m for m in manifests if m["kind"] == "Job" and "-fetch-" in m["metadata"]["name"]]


def pods(manifests: list[Manifest]) -> dict[str, Any]:
    """Return the spec of one pod of each role."""
    return {pod["metadata"]["labels"]["flyserve.io/role"]: pod["spec"] for pod in pod_templates(manifests)}


def environment(container: Any) -> dict[str, Any]:
    return {variable["name"]: variable.get("value") for variable in container["env"]}


def test_a_job_for_each_model_fills_the_volume(tmp_path: Path) -> None:
    manifests = rendered(tmp_path, FETCHED)
    assert len(jobs(manifests)) == 2
    for job, model in zip(jobs(manifests), (LLAMA, SMALL), strict=True):
        kubernetes_validate.validate(job, "1.28", strict=True)
        spec = job["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        program, command, *arguments = container["command"]
        assert (program, command) == ("flyserve", pull.__name__)
        read = read_arguments(command, arguments)
        assert (read["model"], str(read["destination"])) == (model["source"], f"/models/{model['folder']}")
        assert environment(container)["HF_HUB_OFFLINE"] == "0" and "HF_TOKEN" in environment(container)
        (mount,) = (m for m in container["volumeMounts"] if m["name"] == "models")
        assert not mount.get("readOnly", False)
        (volume,) = (v for v in spec["volumes"] if v["name"] == "models")
        claim = one(manifests, "PersistentVolumeClaim")["metadata"]["name"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim


def test_an_upgrade_fetches_nothing_again(tmp_path: Path) -> None:
    before, after = (
        rendered(tmp_path, FETCHED | more)
        for more in ({}, {"router": {"max_queued": 7}, "rollout": {"surge": 0}})
    )
    assert jobs(before) == jobs(after)
    more = {**FETCHED, "models": {**FETCHED["models"], "fetch": {"models": [LLAMA]}}}
    assert jobs(rendered(tmp_path, more | {"drafter": None, "sub_drafter": None})) == jobs(before)[:1]


def test_pods_wait_for_the_models_that_they_read_and_for_no_others(tmp_path: Path) -> None:
    found = {}
    for role, spec in pods(rendered(tmp_path, FETCHED)).items():
        for container in spec.get("initContainers", ()):
            _, command, *arguments = container["command"]
            read = read_arguments(command, arguments)
            assert read["wait_only"] and read["timeout_s"] == 21600
            assert container["image"] == spec["containers"][0]["image"]
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            (mount,) = (m for m in container["volumeMounts"] if m["name"] == "models")
            assert mount["readOnly"] is True
            found[role] = (read["model"], str(read["destination"]))
    target, drafter = (LLAMA["source"], "/models/llama"), (SMALL["source"], "/models/small")
    assert found == {"router": target, "target": target, "drafter": drafter}


def test_guests_and_parts_of_a_folder_are_waited_for(tmp_path: Path) -> None:
    values = {
        **FETCHED,
        "pods": {"drafter": {"runsWith": "target"}},
        "router": {"chat_template": "/models/small/chat.jinja"},
    }
    found = pods(rendered(tmp_path, values))
    assert len(found["target"]["initContainers"]) == 2
    assert len(found["router"]["initContainers"]) == 2
    assert "initContainers" not in found["sub_drafter"]
    # A name that only begins alike.
    other = {**FETCHED, "target": {"model": "/models/llama-70b"}}
    assert "initContainers" not in pods(rendered(tmp_path, other))["target"]


def test_the_fetch_can_have_an_image_with_the_client_of_a_store(tmp_path: Path) -> None:
    values = {
        "target": {"model": "/models/llama"},
        "models": {"existingClaim": "weights", "fetch": {"models": [BUCKET]}},
        "pods": {"fetch": {**OWN_IMAGE["fetch"], "env": [{"name": "AWS_REGION", "value": "eu-west-1"}]}},
    }
    found = pods(rendered(tmp_path, values))
    (container,) = found["fetch"]["containers"]
    assert container["image"].startswith("here/flyserve-s3:")
    assert environment(container)["AWS_REGION"] == "eu-west-1" and "HF_TOKEN" not in environment(container)
    # Waiting needs no client.
    (waits,) = found["target"]["initContainers"]
    assert waits["image"] == found["target"]["containers"][0]["image"]


def test_nobody_connects_to_a_job_that_fetches(tmp_path: Path) -> None:
    policy = one(rendered(tmp_path, FETCHED), "NetworkPolicy", "-jobs")["spec"]
    (roles,) = policy["podSelector"]["matchExpressions"]
    assert set(roles["values"]) == {"apply", "fetch", "test"} and "ingress" not in policy


def test_every_pod_has_a_limit_on_its_nodes_disk(tmp_path: Path) -> None:
    found = pods(rendered(tmp_path, {**FETCHED, "pods": {"head": {"tmpSize": "3Gi"}}}))
    assert {"router", "head", "target", "drafter", "sub_drafter", "apply", "fetch", "test"} == found.keys()
    for role, spec in found.items():
        scratch = [volume["emptyDir"] for volume in spec["volumes"] if "emptyDir" in volume]
        assert scratch and all("sizeLimit" in volume for volume in scratch), role
        assert "ephemeral-storage" in spec["containers"][0]["resources"]["requests"], role
    assert {"name": "tmp", "emptyDir": {"sizeLimit": "3Gi"}} in found["head"]["volumes"]


def test_weights_without_a_volume_take_the_space_that_is_granted(tmp_path: Path) -> None:
    values = {**HUB, "models": {"hub": {"online": True, "ephemeralSize": "50Gi"}}}
    found = pods(rendered(tmp_path, values))
    target = found["target"]
    assert {"name": "models", "emptyDir": {"sizeLimit": "50Gi"}} in target["volumes"]
    (container,) = target["containers"]
    assert container["resources"]["requests"]["ephemeral-storage"] == "50Gi"
    assert environment(container)["HF_HOME"] == "/models/hub"
    assert {"name": "models", "mountPath": "/models", "readOnly": False} in container["volumeMounts"]
    # Routers fetch a tokenizer, the others nothing.
    assert environment(found["router"]["containers"][0])["HF_HOME"] == "/tmp/hub"
    for role in found.keys() - {"target"}:
        assert "models" not in {volume["name"] for volume in found[role]["volumes"]}


@pytest.mark.parametrize("vocabulary", ["same", "text"])
def test_a_drafter_that_maps_text_reads_the_target_s_tokenizer(vocabulary: str, tmp_path: Path) -> None:
    maps = vocabulary == "text"

    def drafter(values: Any) -> Any:
        more = {"drafter": {**values["drafter"], "vocabulary": vocabulary}}
        return pods(rendered(tmp_path, {**values, **more}))["drafter"]

    target = {"target": {"model": "/models/llama"}, "models": {"existingClaim": "weights"}}
    claimed = drafter({**SHIPPED, **target})
    mounts = {mount["name"] for mount in claimed["containers"][0]["volumeMounts"]}
    assert ("models" in mounts) == maps
    assert len(drafter(FETCHED)["initContainers"]) == 1 + maps
    hub = {"hub": {"online": True, "ephemeralSize": "1Gi"}}
    fetching_drafter = drafter({**SHIPPED, **HUB, "models": hub})["containers"][0]
    assert environment(fetching_drafter).get("HF_HUB_OFFLINE") == ("0" if maps else None)


def test_what_fetches_from_the_hub_can_write_its_cache(tmp_path: Path) -> None:
    online = {"existingClaim": "weights", "hub": {"online": True}}
    values = {**HUB, "models": online, "router": {"chat_template": "/models/chat.jinja"}}
    homes = {}
    for role, spec in pods(rendered(tmp_path, values)).items():
        (container, *_) = spec["containers"]
        home = homes[role] = {each["name"]: each for each in container.get("env", ())}.get("HF_HOME", {})
        reads = [mount["mountPath"] for mount in container["volumeMounts"] if mount.get("readOnly")]
        assert not any(home.get("value", "").startswith(f"{path}/") for path in reads), role
    assert (homes["router"]["value"], homes["target"]["value"]) == ("/tmp/hub", "/models/hub")


def restart_delays_s(number: int) -> int:
    """Return the time that Kubernetes waits before this many restarts of a container."""
    return sum(min(300, 10 * 2**index) for index in range(number))


@pytest.mark.parametrize("timeout_s", [600, 21_600, 200_000])
def test_a_fetch_that_fails_is_repeated_until_its_time_is_over(timeout_s: int, tmp_path: Path) -> None:
    fetch = {**FETCHED["models"]["fetch"], "timeoutSeconds": timeout_s}
    for job in jobs(rendered(tmp_path, {**FETCHED, "models": {**FETCHED["models"], "fetch": fetch}})):
        assert job["spec"]["activeDeadlineSeconds"] == timeout_s
        assert restart_delays_s(job["spec"]["backoffLimit"]) >= timeout_s


def test_the_log_of_an_apply_that_failed_stays_with_its_pod(tmp_path: Path) -> None:
    for made in rendered(tmp_path):
        if made["kind"] == "Job":
            assert made["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_folders_of_the_image_can_have_any_name(tmp_path: Path) -> None:
    values = {"target": {"model": "./org/name"}, "drafter": {"model": "demo/models/drafter"}}
    (made,) = deployments(rendered(tmp_path, values), tmp_path)
    assert str(made.target.model) == "org/name"
    assert rendered(tmp_path, {"target": {"model": "/opt/models/v1@2"}})


def fetching(*models: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"models": {"existingClaim": "weights", "fetch": {"models": list(models)}}, **more}


REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a bucket as a model": (
        {"target": {"model": "s3://bucket/x"}},
        ("target.model: is s3://bucket/x", "models.fetch", "models.existingClaim", "/models/FOLDER"),
    ),
    "an image as a model": (
        {"drafter": {"model": "oci://r/x:1"}},
        ("drafter.model: is oci://r/x:1", "folders"),
    ),
    "a model of the hub by URL": (
        {"drafter": {"model": "hf://org/name@main"}},
        ("drafter.model: is hf://org/name@main", "written org/name@revision here"),
    ),
    "a name without a revision": (
        {"target": {"model": "meta-llama/Llama-3.1-8B"}},
        ("without a revision", "meta-llama/Llama-3.1-8B@main", "./meta-llama/Llama-3.1-8B"),
    ),
    "a name with an empty revision": (
        {"target": {"model": "org/name@"}, "models": {"existingClaim": "weights"}},
        ("target.model: is org/name@, without a revision", "org/name@main"),
    ),
    "weights that nothing keeps": (
        {**HUB, "models": {"hub": {"online": True}}},
        ("target.model: is org/name@main", "nothing keeps it", "models.hub.ephemeralSize"),
    ),
    "a fetch into nothing": (
        {"models": {"fetch": {"models": [LLAMA]}}},
        ("hf://meta-llama/Llama-3.1-8B@0123abc has no volume", "models.persistence.size"),
    ),
    "a volume of one node for a Job and pods": (
        {
            "models": {
                "persistence": {"size": "1Gi", "accessMode": "ReadWriteOnce"},
                "fetch": {"models": [SMALL]},
            }
        },
        ("models.persistence.accessMode: is ReadWriteOnce", "a Job fills the volume", "ReadWriteMany"),
    ),
    "two models in one folder": (fetching(LLAMA, {**SMALL, "folder": "llama"}), ("folder llama", "its own")),
    "a source without a revision": (
        fetching({"source": "hf://org/name", "folder": "x"}),
        ("hf://org/name has no revision", "hf://org/name@main"),
    ),
    "a source without a scheme": (
        fetching({"source": "org/name@main", "folder": "x"}),
        ("fetch.models", "pattern"),
    ),
    "a folder that is a path": (fetching({**SMALL, "folder": "../x"}), ("fetch.models", "pattern")),
    "an image as a source": (
        fetching({"source": "oci://r/x:1", "folder": "x"}),
        ("oci://r/x:1 is an image", "pods.<role>.extra"),
    ),
    "a bucket without its client": (
        fetching(BUCKET),
        ("s3://bucket/llama needs a client of s3", "pods.fetch.image"),
    ),
    "a disk of no size": ({"pods": {"router": {"tmpSize": ""}}}, ("pods.router.tmpSize", "1")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_models_that_cannot_be_read_are_rejected_with_key_and_remedy(case: str, tmp_path: Path) -> None:
    values, parts = REFUSED[case]
    with pytest.raises(ChartError) as rejection:
        rendered(tmp_path, values)
    assert all(part in str(rejection.value) for part in parts), rejection.value
