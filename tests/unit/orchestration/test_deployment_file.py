from dataclasses import replace
from pathlib import Path

import pytest

from flyserve.core.errors import ConfigError
from flyserve.core.presets import PRESETS
from flyserve.core.types import TailPolicy
from orchestration.deployment.file import APPLICATION_ROOT, load_deployment, with_router_ports
from orchestration.deployment.plan import plan, router_config
from orchestration.deployment.tiers import BuiltinDrafter, ModelTier
from router.config import RouterConfig
from services.common.config import parse
from services.engine.config import Dtype


def written(folder: Path, text: str) -> Path:
    path = folder / "deployment.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "big").mkdir()
    (tmp_path / "small").mkdir()
    return tmp_path


def test_models_are_found_beside_the_file(folder: Path) -> None:
    deployment = load_deployment(written(folder, "target: {model: big}\ndrafter: {model: small}"))
    assert deployment.target.model == folder / "big"
    assert isinstance(deployment.drafter, BuiltinDrafter)
    assert deployment.drafter.model == folder / "small"
    assert deployment.target.dtype is Dtype.BFLOAT16


def test_models_are_found_under_the_applications_root_or_on_the_hub(folder: Path) -> None:
    assert (
        load_deployment(written(folder, "target: {model: services}")).target.model
        == APPLICATION_ROOT / "services"
    )
    assert load_deployment(written(folder, "target: {model: org/a@main}")).target.model == Path("org/a@main")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("target: {model: big, replica: 2}", "target.replica: unknown key, did you mean 'replicas'?"),
        ("tarhet: {model: big}", "tarhet: unknown key, did you mean 'target'?"),
        ("target: {}", "target.model: is required"),
        (
            "target: {model: big}\ndrafter: {engine: magic}",
            "drafter.engine: is 'magic': must be one of 'builtin', 'vllm', 'llamacpp', 'suffix'",
        ),
        (
            "target: {model: big}\ndrafter: {engine: ngram}",
            "'suffix'; ngram is removed: use suffix, which looks tokens up in the sequence, too",
        ),
        (
            "target: {model: big}\ndrafter: {model: big}\nsub_drafter: {engine: ngram}",
            "sub_drafter.engine: is 'ngram': must be one of 'suffix', 'none'; ngram is removed: use suffix",
        ),
        (
            "target: {model: big}\ndrafter: {replicas: 2}",
            "drafter.model: is required with engine builtin; engines without it: suffix",
        ),
        (
            "target: {model: big}\ndrafter: {engine: suffix, model: small}",
            "drafter.model: engine suffix has no such key, only builtin, vllm, llamacpp: leave it out",
        ),
        (
            "target: {model: big}\ndrafter: {engine: suffix}\nsub_drafter: {engine: suffix}",
            "sub_drafter: has the engine suffix, but drafter.engine is suffix, which uses no sub-drafter",
        ),
        (
            "target: {model: big}\nspeculation: {carry_after: 9}",
            "carry_after is 9, at most the window of 2",
        ),
        ("target: {model: gone}", "target.model: no folder gone"),
        ("target: {model: org/name}", "a model of the hub is written org/name@revision"),
        (
            "target: {model: 's3://bucket/big'}",
            "target.model: is 's3://bucket/big': models are read from folders and from the hub: flyserve pull"
            " s3://bucket/big FOLDER fills a folder",
        ),
        (
            "target: {model: big}\ndrafter: {model: 'hf://org/name@main'}",
            "drafter.model: is 'hf://org/name@main': a model of the hub is written org/name@main here",
        ),
        (
            "target: {model: big}\ndrafter: {model: 'hf://org/name'}",
            "drafter.model: is 'hf://org/name': a model of the hub is written org/name@revision here",
        ),
        ("target: big", "target: is 'big': must be a mapping of keys"),
        ("target: {model: big}\nsecurity: {health_port: 1}", "security.health_port: is for TLS"),
        (
            "target: {model: big}\nrouter: {http_port: 50051}",
            "router.http_port: is 50051, as router.grpc_port is: give each its own",
        ),
        (
            "target: {model: big}\nrouter: {http_port: 8000}\ntelemetry: {metrics_port: 8000}",
            "telemetry.metrics_port: is 8000, as router.http_port is",
        ),
        (
            "target: {model: big}\nsecurity: {tls: {certificate: c, key: k, ca: a}, health_port: 50051}",
            "security.health_port: is 50051, as router.grpc_port is",
        ),
        ("target: {model: big}\nsecurity: {tls: {certificate: c, key: k}}", "security.tls.ca: "),
        ("target: {model: big}\ndrafter: {engine: [a]}", "drafter.engine: is \"['a']\": must be one of"),
        ("drafter: {model: small}", "target: is"),
        (
            "target: {model: big}\nrouter: {chat_template: gone.jinja}",
            "router.chat_template: no file gone.jinja",
        ),
        (
            "target: {model: big, replicas: 9, autoscaling: {min: 2, max: 8}}",
            "target.replicas: is 9: must be within autoscaling.min 2 and autoscaling.max 8; to go beyond",
        ),
        (
            "target: {model: big}\ndrafter: {model: small, autoscaling: {max: 2, target_load: 70}}",
            "drafter.autoscaling.target_load: is 70: must be at most 1",
        ),
        (
            "target: {model: big}\nsub_drafter: {autoscaling: {max: 2}}",
            "sub_drafter.autoscaling: unknown key",
        ),
        (
            "target: {model: big, engine: vllm, engine_args: {tensor_parallel_size: 4}}",
            "target.engine_args.tensor_parallel_size: is 4: cannot be set here: the key shards sets it",
        ),
        (
            "target: {model: big, engine: vllm, shards: 2, gpus: 0.8}",
            "target.gpus: is 0.8: must be 1 for each of the 2 processes of vLLM",
        ),
        (
            "target: {model: big, shards: 2, gpus: 0.5}",
            "target.gpus: is 0.5: must be above 0.5 for each of 2 shards: two of them could get the same GPU,"
            " which NCCL rejects: use 1, or a fraction above 0.5",
        ),
        (
            "target: {model: big, engine: vllm, gpus: 0.5}",
            "target.gpus: is 0.5: vLLM takes almost all memory of a GPU unless"
            " engine_args.gpu_memory_utilization limits it",
        ),
        (
            "target: {model: big.gguf}",
            "target.model: is big.gguf, a GGUF file, but engine is builtin: set engine: llamacpp",
        ),
        (
            "target: {model: big, engine: llamacpp}",
            "target.model: is big, must be a GGUF file (*.gguf) with engine llamacpp",
        ),
        (
            "target: {model: big.gguf, engine: llamacpp, gpus: 1}",
            "target.gpus: is 1, must be 0: llama.cpp takes the devices of its build",
        ),
        (
            "target: {model: big, kv_tokens: auto}",
            "target.kv_tokens: is auto, which measures the memory of a GPU, but gpus is 0, must be 1: set a",
        ),
        (
            "target: {model: big, kv_tokens: auto, gpus: 0.7}",
            "target.kv_tokens: is auto, which would take the memory of the others, but gpus is 0.7, must be",
        ),
        (
            "target: {model: big, kv_tokens: 0}",
            "target.kv_tokens: is 0: must be an integer of at least 1, or auto",
        ),
        (
            "target: {model: big}\nsecurity: {auth_tokens_file: keys.yaml}\nsecurity: {health_port: null}",
            "is not YAML: key 'security' is in line 2 and again in line 3",
        ),
    ],
)
def test_a_fault_names_the_key(folder: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_deployment(written(folder, text))
    assert message in str(error.value)
    assert str(folder / "deployment.yaml") in str(error.value)
    assert "\n" not in str(error.value)


def test_an_autoscaled_tier_starts_with_its_fewest_replicas_or_with_what_is_said(folder: Path) -> None:
    fewest = load_deployment(written(folder, "target: {model: big, autoscaling: {min: 2, max: 8}}"))
    assert fewest.target.replicas == 2
    said = load_deployment(written(folder, "target: {model: big, replicas: 5, autoscaling: {max: 8}}"))
    assert said.target.replicas == 5
    assert type(said).model_validate_json(said.model_dump_json()) == said


@pytest.mark.parametrize(
    ("target", "drafter"),
    [
        (
            "engine: vllm, gpus: 0.7, engine_args: {gpu_memory_utilization: 0.6}",
            "engine: vllm, gpus: 0.3, engine_args: {kv_cache_memory_bytes: 4000000000}",
        ),
        ("kv_tokens: auto, gpus: 1, shards: 4", "gpus: 1"),
        ("shards: 8, gpus: 0.8", "gpus: 0.2"),
    ],
)
def test_tiers_can_share_gpus_and_have_their_memory_measured(folder: Path, target: str, drafter: str) -> None:
    text = f"target: {{model: big, {target}}}\ndrafter: {{model: small, {drafter}}}"
    assert load_deployment(written(folder, text)).target.gpus > 0


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: No such file"):
        load_deployment(tmp_path / "absent.yaml")


def test_a_machine_without_models_does_not_check_absolute_paths(folder: Path) -> None:
    text = "target: {model: /models/big}\ndrafter: {model: small}\nrouter: {chat_template: /models/c.jinja}"
    with pytest.raises(ConfigError, match=r"target\.model: no folder /models/big"):
        load_deployment(written(folder, text))
    deployment = load_deployment(written(folder, text), has_models=False)
    assert (deployment.target.model, deployment.router.chat_template) == (
        Path("/models/big"),
        Path("/models/c.jinja"),
    )
    assert isinstance(deployment.drafter, ModelTier) and deployment.drafter.model == folder / "small"
    with pytest.raises(ConfigError, match=r"target\.model: no folder absent"):
        load_deployment(written(folder, "target: {model: absent}"), has_models=False)


def router_of(folder: Path, text: str) -> RouterConfig:
    config = router_config(load_deployment(written(folder, text)), "127.0.0.1:1", 60.0, 5.0)
    return parse(RouterConfig, config, "router")


def test_the_router_gets_the_rule_that_the_preset_and_the_fields_make(folder: Path) -> None:
    speculation = "{preset: flyserve, window: 4, tail: carry}"
    rule = router_of(folder, f"target: {{model: big}}\nspeculation: {speculation}").speculation.rule
    assert rule == replace(PRESETS["flyserve"], window=4, min_following=4, tail=TailPolicy.CARRY)


def test_every_process_has_its_own_name_and_that_of_its_deployment(folder: Path) -> None:
    text = "name: mine\ntarget: {model: big, replicas: 2}\ntelemetry: {metrics_port: 9000}"
    deployment = load_deployment(written(folder, text))
    for name in ("router-0", "flyserve-router-7d9f"):
        config = router_config(deployment, "127.0.0.1:1", 60.0, 5.0, name)
        telemetry = parse(RouterConfig, config, "router").telemetry
        assert (telemetry.replica, telemetry.deployment) == (name, "mine")
    services = [spec.config["telemetry"] for spec in plan(deployment, "127.0.0.1:1")]
    assert [(each["replica"], each["deployment"]) for each in services] == [
        ("target-0", "mine"),
        ("target-1", "mine"),
    ]


def test_the_file_or_the_models_folder_names_the_model(folder: Path) -> None:
    (folder / "chat.jinja").write_text("{{ messages }}", encoding="utf-8")
    router = router_of(
        folder, "target: {model: big}\nrouter: {model_name: mine, http_port: 0, chat_template: chat.jinja}"
    )
    assert (router.served_name, router.chat_template) == ("mine", folder / "chat.jinja")
    silent = router_of(folder, "target: {model: big}")
    assert (silent.http_port, silent.served_name) == (None, "big")
    hub = parse(RouterConfig, {"model": "org/name@main", "registry": "127.0.0.1:1"}, "router")
    assert hub.served_name == "org/name"


@pytest.mark.parametrize("ports", [(8000, 8000), (8000, None), (None, 50_051), (9400, None), (None, 9400)])
def test_flags_give_no_port_two_uses(folder: Path, ports: tuple[int | None, int | None]) -> None:
    text = "target: {model: big}\nrouter: {http_port: 8000}\ntelemetry: {metrics_port: 9400}"
    deployment = load_deployment(written(folder, text))
    with pytest.raises(ConfigError, match=r"_port: is \d+, as router\.\w+ is: give each its own"):
        with_router_ports(deployment, *ports)


@pytest.mark.parametrize("ports", [(0, 0), (None, None), (8000, 50_051), (8000, 0)])
def test_flags_change_ports_together_and_zero_is_any_free_one(
    folder: Path, ports: tuple[int | None, int | None]
) -> None:
    deployment = load_deployment(written(folder, "target: {model: big}\nrouter: {http_port: 8000}"))
    router = with_router_ports(deployment, *ports).router
    assert ports in ((None, None), (router.grpc_port, router.http_port))


def test_a_router_alone_has_a_port_for_each_use() -> None:
    base = {"model": "org/name@main", "registry": "127.0.0.1:1"}
    with pytest.raises(ConfigError, match="router: http_port: is 50051, as grpc_port is: give each its own"):
        parse(RouterConfig, {**base, "http_port": 50_051}, "router")
    parse(RouterConfig, {**base, "grpc_port": 0, "http_port": 0, "telemetry": {"metrics_port": 0}}, "router")
