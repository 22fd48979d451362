"""Every key of a service is a flag of its command, and a key of the file that --config names."""

import json
from pathlib import Path
from typing import Any

import pytest

from router.config import RouterConfig
from services.common.config import Config, parse_yaml
from services.common.flags import configure
from services.common.sections import ENGINE, Engines, sections_of
from services.drafter.config import DRAFTERS
from services.lookup.config import SuffixConfig
from services.target.config import TARGETS, TargetConfig
from tests.support.config_values import at, nested, other_values

SERVICES: dict[str, Engines[Any] | type[Config]] = {
    "target": TARGETS,
    "drafter": DRAFTERS,
    "sub_drafter": SuffixConfig,
    "router": RouterConfig,
}
NEEDED: dict[str, tuple[str, ...]] = {
    "target": ("--model", "m"),
    "drafter": ("--model", "m"),
    "sub_drafter": (),
    "router": ("--model", "m", "--target", "here:1"),
}
TLS = tuple(text for name in ("certificate", "key", "ca") for text in (f"--security.tls.{name}", "c"))
KEYS = [
    (service, key, value)
    for service, config in SERVICES.items()
    for key, value in other_values(sections_of(config))
    if key != ENGINE
]


def flags_of(service: str, key: str, value: Any) -> list[str]:
    """The flag of a key, with those that it needs and without those that it excludes."""
    needed = [*NEEDED[service], *(TLS if key.startswith("security.") else ())]
    if isinstance(config := SERVICES[service], Engines):
        having = (engine for engine in config.names if key.split(".")[0] in config.named(engine).model_fields)
        needed += ["--engine", next(having)]
    if key == "vocabulary":
        needed += ["--target-tokenizer", "t"]
    excluded = {"simulated": "--model", "registry": "--target", "targets": "--target"}.get(key)
    if excluded in needed:
        place = needed.index(excluded)
        needed[place : place + 2] = []
    flag = f"--{key.replace('_', '-')}"
    if isinstance(value, list):
        return [*needed, flag.removesuffix("s"), value[0]]
    return [*needed, flag, json.dumps(value) if isinstance(value, dict) else str(value)]


@pytest.mark.parametrize(("service", "key", "value"), KEYS, ids=[f"{s}-{k}" for s, k, _ in KEYS])
def test_a_flag_sets_its_key(service: str, key: str, value: Any) -> None:
    if key == "limits.default_new_tokens":
        value = 100
    config: Any = SERVICES[service]
    made = configure(config, "Serve.", flags_of(service, key, value)).model_dump(mode="json")
    found = at(made, key)
    assert found.items() >= value.items() if isinstance(value, dict) else found == value


def test_flags_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "target.yaml"
    values = {
        "model": "m",
        "threads": 2,
        "kv_tokens": 99,
        "telemetry.log_format": "json",
        "telemetry.replica": "a",
    }
    file.write_text(json.dumps(nested(values)))
    flags = ["--config", str(file), "--threads", "3", "--telemetry.replica", "b"]
    made = configure(TargetConfig, "Serve.", flags)
    assert (made.threads, made.kv_tokens) == (3, 99)
    assert (made.telemetry.log_format, made.telemetry.replica) == ("json", "b")


def test_memory_is_measured_on_a_gpu_only(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "m", "--kv-tokens", "auto"]
    assert configure(TargetConfig, "Serve.", [*flags, "--device", "cuda"]).kv_tokens == "auto"
    with pytest.raises(SystemExit):
        configure(TargetConfig, "Serve.", flags)
    simulated = ["--simulated", "{base_s: 0.1}", "--kv-tokens", "auto", "--device", "cuda"]
    with pytest.raises(SystemExit):
        configure(TargetConfig, "Serve.", simulated)
    on_cpu, of_simulated = capsys.readouterr().err.splitlines()
    assert "kv_tokens: is auto, the memory of a GPU, but device is cpu: set a number" in on_cpu
    assert "kv_tokens: is auto, the memory of a GPU, but a simulated model has none" in of_simulated


def test_null_unsets_an_optional_key(tmp_path: Path) -> None:
    (file := tmp_path / "router.yaml").write_text("{model: m, targets: ['here:1'], http_port: 8000}")
    assert configure(RouterConfig, "Serve.", ["--config", str(file), "--http-port", "null"]).http_port is None


def test_a_section_is_yaml_and_its_keys_override_it() -> None:
    flags = ["--telemetry.replica", "b", "--telemetry", "{replica: a, log_format: json}"]
    made = configure(SuffixConfig, "Serve.", flags)
    assert (made.telemetry.log_format, made.telemetry.replica) == ("json", "b")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--max-sequences", "0"), "max_sequences: is '0': must be at least 1"),
        (("--engine", "suffix"), "engine: is 'suffix': must be one of 'builtin', 'vllm'"),
        (
            ("--engine", "vllm", "--kv-tokens", "9"),
            "kv_tokens: engine vllm has no such key, only builtin, llamacpp: leave it out",
        ),
        (("--engine-args", "{seed: 1}"), "engine_args: engine builtin has no such key, only vllm: leave it"),
        (("--max-seq", "3"), "unrecognized arguments: --max-seq 3"),
        (
            ("--simulated", "{base_s: "),
            "argument --simulated: is not YAML: while parsing a flow node expected the node content,"
            " but found '<stream end>' in line 1, column 10",
        ),
        (("--simulated", "{base_s: 1, base_s: 2}"), "key 'base_s' is in line 1 and again in line 1"),
        (("--telemetry", "{replica: 2026-02-30}"), "is not YAML: day is out of range"),
        (("--telemetry", "{replica: " + "[" * 3000), "is not YAML: it is nested too deep"),
        (("--simulated", "{}"), "give either model or simulated"),
        (("--config", "missing.yaml"), "missing.yaml: No such file"),
    ],
)
def test_a_fault_is_one_line(
    flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        configure(TARGETS, "Serve.", ["--model", "m", *flags])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and message in line


def test_help_shows_every_key_with_its_description(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        configure(TARGETS, "Serve a target.", ["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "Serve a target." in shown and "--max-batch-tokens" in shown
    assert (
        "Token rows of one forward; longer prefills are processed in chunks." in shown
        and "Default: 512." in shown
    )


def test_a_mapping_may_merge_several_others() -> None:
    text = "a: &a {x: 1}\nb: &b {y: 2}\nc:\n  <<: *a\n  <<: *b\n"
    assert parse_yaml(text)["c"] == {"x": 1, "y": 2}
