"""The rendered objects fit the code that reads them: files, commands, ports, probes."""

from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from flyserve.cli import app
from flyserve.core.messages import Role
from orchestration.deployment.file import LAST_METRICS_OFFSET, METRICS_OFFSETS
from orchestration.deployment.plan import plan, router_config
from orchestration.deployment.tiers import ModelTier
from router.config import RouterConfig
from router.servicer import SERVICE_NAME
from services.common.config import parse
from tests.chart.charts import CPU_DEMO, SECURED, Manifest, deployments, objects, one, pod_templates, rendered
from tests.support.documents import snippets
from tools.chart import CHART
from tools.chart_goldens import EXAMPLES, RENDERED

PAGES = CHART.parents[1] / "docs" / "kubernetes"
ray_constants = pytest.importorskip("ray._private.ray_constants")
ray_scripts = pytest.importorskip("ray.scripts.scripts")


def container(manifests: list[Manifest], role: str) -> Any:
    (found,) = {
        yaml.safe_dump(pod["spec"]["containers"][0])
        for pod in pod_templates(manifests)
        if pod["metadata"]["labels"].get("flyserve.io/role") == role
    }
    return yaml.safe_load(found)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_rendered_files_are_deployments_that_routers_understand(example: Path, tmp_path: Path) -> None:
    for made in deployments(objects((RENDERED / example.name).read_text()), tmp_path):
        config = parse(RouterConfig, router_config(made, "registry:1", 60.0, 5.0), "router")
        assert config.host == "0.0.0.0"
        assert plan(made, "registry:1")


def test_a_drafter_without_a_model_is_named_by_its_engine_alone(tmp_path: Path) -> None:
    (made,) = deployments(rendered(tmp_path, {"drafter": {"engine": "suffix"}}), tmp_path)
    assert made.drafter is not None and made.drafter.engine == "suffix"
    assert made.sub_drafter is None


def test_a_sub_drafter_keeps_its_engine_where_other_keys_are_set(tmp_path: Path) -> None:
    (made,) = deployments(rendered(tmp_path, {"sub_drafter": {"replicas": 2}}), tmp_path)
    assert made.sub_drafter is not None
    assert (made.sub_drafter.engine, made.sub_drafter.replicas) == ("suffix", 2)


def test_pods_decide_what_is_left_to_the_machine(tmp_path: Path) -> None:
    auto = {"gpus": "auto", "threads": "auto"}
    values = {"target": auto, "drafter": auto, "pods": {"target": {"gpus": 1}}}
    manifests = rendered(tmp_path, values)
    (made,) = deployments(manifests, tmp_path)
    assert isinstance(made.drafter, ModelTier)
    assert (made.target.gpus, made.drafter.gpus) == (1, 0)
    assert (made.target.threads, made.drafter.threads) == ("auto", "auto")
    specs = {spec.role: spec for spec in plan(made, "registry:1")}
    assert specs[Role.TARGET].config["threads"] == "auto" and specs[Role.TARGET].num_cpus == 1


@pytest.mark.parametrize("keys", [{"quantization": "int8"}, {"engine": "llamacpp", "model": "/m/small.gguf"}])
def test_a_tier_that_can_take_no_gpus_gets_none_in_pods_that_have_some(
    keys: dict[str, Any], tmp_path: Path
) -> None:
    auto = {"gpus": "auto", "threads": 1}
    pods = {"target": {"gpus": 1}, "drafter": {"runsWith": "target"}}
    (made,) = deployments(
        rendered(tmp_path, {"target": auto, "drafter": auto | keys, "pods": pods}), tmp_path
    )
    assert isinstance(made.drafter, ModelTier)
    assert (made.target.gpus, made.drafter.gpus) == (1, 0)


def test_sections_that_are_left_away_are_left_away(tmp_path: Path) -> None:
    (made,) = deployments(rendered(tmp_path, {"drafter": None, "sub_drafter": None}), tmp_path)
    assert made.drafter is None and made.sub_drafter is None


def test_replicas_run_only_where_their_mark_is(tmp_path: Path) -> None:
    manifests = rendered(tmp_path, {"pods": {"drafter": {"runsWith": "target", "replicasPerPod": 2}}})
    (made,) = deployments(manifests, tmp_path)
    offered = {
        group["groupName"]: yaml.safe_load(yaml.safe_load(group["rayStartParams"]["resources"]))
        for group in one(manifests, "RayCluster")["spec"]["workerGroupSpecs"]
    }
    asked = {spec.role.value: str(spec.node_resource) for spec in plan(made, "registry:1")}
    assert offered["target"].keys() == {asked["target"], asked["drafter"]}
    assert offered["sub-drafter"].keys() == {asked["sub_drafter"]}


def test_the_commands_are_the_ones_of_the_command_line(tmp_path: Path) -> None:
    manifests = rendered(tmp_path, None, CPU_DEMO)
    for role, name in (("router", "router"), ("apply", "apply"), ("test", "generate")):
        program, command, *arguments = container(manifests, role)["command"]
        assert (program, command) == ("flyserve", name)
        read_arguments(command, arguments)


def read_arguments(command: str, arguments: list[str]) -> dict[str, Any]:
    """Return the parameters that a command reads from its arguments; an unknown one is an error."""
    group: Any = typer.main.get_command(app)
    params: dict[str, Any] = group.commands[command].make_context(command, arguments).params
    return params


@pytest.mark.parametrize("example", [CPU_DEMO, SECURED], ids=lambda path: path.stem)
def test_every_port_of_a_policy_is_one_that_the_code_listens_at(example: Path, tmp_path: Path) -> None:
    manifests = rendered(tmp_path, None, example)
    (made,) = deployments(manifests, tmp_path)
    assert made.service_ports is not None
    first, last = (int(port) for port in made.service_ports.split("-"))
    metrics = made.telemetry.metrics_port
    assert metrics is not None
    of_tiers = metrics + min(METRICS_OFFSETS.values()), metrics + LAST_METRICS_OFFSET
    public = {made.router.grpc_port, made.router.http_port, metrics}
    public |= {made.security.health_port} - {None}
    groups = one(manifests, "RayCluster")["spec"]["workerGroupSpecs"]
    (of_ray,) = {int(group["rayStartParams"]["metrics-export-port"]) for group in groups}
    internal = {made.controller.port, (first, last), ray_constants.DEFAULT_DASHBOARD_PORT, of_tiers, of_ray}

    def opened(name: str) -> set[Any]:
        rules = one(manifests, "NetworkPolicy", name)["spec"].get("ingress", [])
        ports = [port for rule in rules for port in rule.get("ports", [])]
        return {(port["port"], port["endPort"]) if "endPort" in port else port["port"] for port in ports}

    assert opened("-router") == public
    assert opened("-ray") == internal
    assert opened("-jobs") == set()


def test_who_may_call_whom(tmp_path: Path) -> None:
    manifests = rendered(tmp_path, {"networkPolicy": {"clients": [{"podSelector": {}}]}})
    roles = {pod["metadata"]["labels"]["flyserve.io/role"] for pod in pod_templates(manifests)}
    rules = one(manifests, "NetworkPolicy", "-ray")["spec"]["ingress"]
    callers = [rule["from"][0].get("podSelector", {}).get("matchLabels", {}) for rule in rules]
    assert [caller.get("flyserve.io/role", caller.get("flyserve.io/ray")) for caller in callers] == [
        "true",
        "router",
        "apply",
        None,
    ]
    assert rules[-1]["from"] == [{"namespaceSelector": {}}]
    assert {"router", "apply", "head", "target", "drafter", "sub_drafter", "test"} == roles
    rule, metrics = one(manifests, "NetworkPolicy", "-router")["spec"]["ingress"]
    assert metrics["from"] == [{"namespaceSelector": {}}]
    assert rule["from"][0] == {"podSelector": {}}
    assert rule["from"][1]["podSelector"]["matchLabels"]["flyserve.io/role"] == "test"


def ports_of(manifests: list[Manifest], *roles: str) -> dict[str, int]:
    """Return the ports of the pods of these roles, by name."""
    return {
        port["name"]: port["containerPort"]
        for pod in pod_templates(manifests)
        if pod["metadata"]["labels"]["flyserve.io/role"] in roles
        for port in pod["spec"]["containers"][0].get("ports", [])
    }


def test_services_lead_to_ports_that_containers_name(tmp_path: Path) -> None:
    manifests = rendered(tmp_path)
    for service in (m for m in manifests if m["kind"] == "Service"):
        named = ports_of(manifests, service["spec"]["selector"]["flyserve.io/role"])
        for port in service["spec"]["ports"]:
            assert named[port["targetPort"]] == port["port"]


def test_probes_ask_for_what_the_router_and_ray_serve(tmp_path: Path) -> None:
    manifests = rendered(tmp_path)
    router = container(manifests, "router")
    assert router["startupProbe"]["grpc"] == {"port": 50051, "service": SERVICE_NAME}
    # A router without targets answers 503, and one slow answer takes no router out.
    for probe in (router["readinessProbe"], router["livenessProbe"]):
        assert probe["grpc"] == {"port": 50051, "service": ""}
        assert probe["failureThreshold"] >= 3 <= probe["timeoutSeconds"]
    # With TLS, health is served in plaintext at its own port.
    secured = container(rendered(tmp_path, None, SECURED), "router")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert secured[probe]["grpc"] == {**router[probe]["grpc"], "port": 50053}
    # Of the raylet, and of GCS on the head, whose raylet runs the controller.
    agent = {"path": "/api/healthz", "port": ray_constants.DEFAULT_DASHBOARD_AGENT_LISTEN_PORT}
    for role in ("head", "target"):
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container(manifests, role)[probe]["httpGet"] == agent


def test_ray_listens_on_ports_of_its_own(tmp_path: Path) -> None:
    """By itself it takes free ones from the range of the services."""
    manifests = rendered(tmp_path)
    spec = one(manifests, "RayCluster")["spec"]
    (made,) = deployments(manifests, tmp_path)
    first, _, last = str(made.service_ports).partition("-")
    ours = {made.controller.port, *range(int(first), int(last) + 1)}
    options = {option for parameter in ray_scripts.start.params for option in parameter.opts}
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert {f"--{key}" for key in group["rayStartParams"]} <= options
        ports = {key: int(value) for key, value in group["rayStartParams"].items() if key.endswith("-port")}
        assert {"node-manager-port", "object-manager-port", "runtime-env-agent-port"} <= ports.keys()
        workers = range(ports.pop("min-worker-port"), ports.pop("max-worker-port") + 1)
        assert len({*ports.values()}) == len(ports) and not {*ports.values()} & {*ours, *workers}
        assert not ours & {*workers}


def test_the_replicas_of_a_worker_drain_before_it_ends(tmp_path: Path) -> None:
    manifests = rendered(tmp_path, {"rollout": {"drain_s": 100}})
    workers = [
        pod["spec"]
        for pod in pod_templates(manifests)
        if pod["spec"]["containers"][0]["name"] == "ray-worker"
    ]
    assert workers
    for worker in workers:
        program, *arguments = worker["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        given = arguments[arguments.index("--timeout-s") + 1]
        assert (program, arguments[0], given) == ("flyserve", "drain", "130")
        assert worker["terminationGracePeriodSeconds"] > int(given)


def test_secrets_are_only_named(tmp_path: Path) -> None:
    manifests = rendered(
        tmp_path,
        {
            "target": {"model": "org/name@main"},
            "models": {
                "existingClaim": "weights",
                "hub": {"online": True, "tokenSecret": {"name": "hub"}},
            },
            "image": {"pullSecrets": ["registry"]},
            "ray": {"authSecret": "ray-token"},
        },
    )
    for pod in pod_templates(manifests):
        assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    variables = {v["name"]: v for v in container(manifests, "target")["env"]}
    assert variables["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "hub", "key": "token"}
    assert variables["HF_HUB_OFFLINE"]["value"] == "0"
    variables = {v["name"]: v for v in container(manifests, "apply")["env"]}
    assert variables["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"] == {
        "name": "ray-token",
        "key": "auth_token",
    }
    assert one(manifests, "RayCluster")["spec"]["authOptions"]["secretName"] == "ray-token"


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_values_that_a_page_shows_can_be_installed(page: Path, tmp_path: Path) -> None:
    shown = [snippet.code for snippet in snippets(page) if snippet.language == "yaml"]
    assert shown
    for values in shown:
        assert rendered(tmp_path, yaml.safe_load(values))


def test_workers_of_a_tier_on_vllm_have_an_image_of_their_own(tmp_path: Path) -> None:
    def images(image: dict[str, str]) -> dict[str, str]:
        values = {"image": image, "target": {"engine": "vllm"}}
        pods = pod_templates(rendered(tmp_path, values))
        roles = (pod["metadata"]["labels"]["flyserve.io/role"] for pod in pods)
        return dict(zip(roles, (pod["spec"]["containers"][0]["image"] for pod in pods), strict=True))

    found = images({"repository": "here/flyserve", "tag": "7"})
    assert found.pop("target") == "here/flyserve:7-vllm"
    assert {"router", "head", "drafter", "sub_drafter", "apply"} <= found.keys()
    assert set(found.values()) == {"here/flyserve:7"}
    assert images({"vllmTag": "mine"})["target"] == "flyserve:mine"


def test_a_pipeline_of_vllm_multiplies_what_a_pod_offers(tmp_path: Path) -> None:
    values = {
        "target": {
            **{"engine": "vllm", "shards": 4, "gpus": 1, "threads": 2},
            "engine_args": {"pipeline_parallel_size": 2},
        },
        "pods": {"target": {"gpus": 8}},
    }
    manifests = rendered(tmp_path, values)
    (target, *_) = one(manifests, "RayCluster")["spec"]["workerGroupSpecs"]
    assert (target["rayStartParams"]["num-gpus"], target["rayStartParams"]["num-cpus"]) == ("8", "16")
    (deployment,) = deployments(manifests, tmp_path)
    specs = [spec for spec in plan(deployment, "here:1") if spec.role.value == "target"]
    assert {(spec.shards, spec.resources["GPU"], spec.resources["CPU"]) for spec in specs} == {(1, 8.0, 16.0)}
