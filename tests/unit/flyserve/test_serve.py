"""`flyserve serve`: the deployment file that a line stands for, and lines that are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from fly.messages import Role
from fly.version import VERSION
from flyserve.cli import app
from orchestration.deployment.file import Deployment
from orchestration.deployment.plan import plan
from services.common.config import parse


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with the folders `target`, `drafter` and `foreign`, whose tokens are others."""
    for name in ("target", "drafter", "foreign"):
        (tmp_path / name).mkdir()
        vocabulary = {"a": 0, "b" if name != "foreign" else "c": 1}
        (tmp_path / name / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    return tmp_path


def printed(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["serve", *map(str, arguments), "--print-config"])


def content(*arguments: str | Path) -> Any:
    result = printed(*arguments)
    assert result.exit_code == 0, result.stderr
    return yaml.safe_load(result.stdout)


def test_a_target_alone_serves_http_where_other_servers_do(models: Path) -> None:
    assert content(models / "target") == {
        "target": {"model": str(models / "target")},
        "router": {"http_port": 8000},
    }


def test_every_flag_is_a_key_of_the_file(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models)
    (models / "keys").write_text("")
    made = content(
        *("target", "--draft", "drafter", "--sub-draft", "suffix", "--replicas", "2", "--host", "0.0.0.0"),
        *(
            "--port",
            "0",
            "--grpc-port",
            "9",
            "--dtype",
            "float32",
            "--engine",
            "builtin",
            "--api-keys",
            "keys",
        ),
    )
    assert made == {
        "target": {
            "model": str(models / "target"),
            "replicas": 2,
            "dtype": "float32",
            "engine": "builtin",
        },
        "drafter": {"model": str(models / "drafter"), "dtype": "float32", "engine": "builtin"},
        "sub_drafter": {"engine": "suffix"},
        "router": {"host": "0.0.0.0", "http_port": 0, "grpc_port": 9},
        "security": {"auth_tokens_file": str(models / "keys")},
    }


@pytest.mark.parametrize("engine", ["suffix", "ngram"])
def test_drafts_need_no_model(models: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models)
    (models / engine).mkdir()
    made = content(
        "target", "--draft", engine, "--dtype", "float32", "--engine", "vllm", "--sub-draft", "none"
    )
    assert made["drafter"] == {"engine": engine} and "sub_drafter" not in made
    assert made["target"]["dtype"] == "float32"
    (models / engine / "tokenizer.json").write_text((models / "target" / "tokenizer.json").read_text())
    assert content("target", "--draft", f"./{engine}")["drafter"] == {"model": str(models / engine)}


def test_a_drafter_with_other_tokens_is_mapped_to_those_of_the_target(models: Path) -> None:
    made = content(models / "target", "--draft", models / "foreign")
    assert made["drafter"] == {"model": str(models / "foreign"), "vocabulary": "text"}
    drafters = [spec for spec in plan(parse(Deployment, made, "test"), "here:1") if spec.role is Role.DRAFTER]
    assert drafters[0].config["target_tokenizer"] == str(models / "target")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("absent",), "target.model: no folder absent"),
        (("target", "--draft", "target"), "--draft: is target, the target itself"),
        (("target", "--draft", "foreign", "--engine", "vllm"), "--draft: the tokens of"),
        (
            ("target", "--sub-draft", "suffix"),
            "--sub-draft: is suffix, which helps a drafter: give --draft too, or only --draft suffix",
        ),
        (
            ("target", "--draft", "suffix", "--sub-draft", "ngram"),
            "--sub-draft: is ngram, which helps a drafter that runs a model, but --draft is suffix",
        ),
        (
            ("target", "--draft", "drafter", "--sub-draft", "suffix", "--engine", "vllm"),
            "sub_drafter: has the engine suffix, but drafter.engine is vllm",
        ),
        (
            ("target", "--draft", "drafter", "--sub-draft", "magic"),
            "--sub-draft: is 'magic', must be one of ngram, suffix, none",
        ),
        (("target", "--host", "0.0.0.0"), "--host: is 0.0.0.0, which others can reach: give --api-keys FILE"),
        (("target", "--host", "some.name"), "--host: is some.name, which others can reach"),
        (("target", "--dtype", "int3"), "target.dtype: is 'int3'"),
        (("target", "--engine", "other"), "target.engine: is 'other'"),
    ],
)
def test_a_wrong_line_is_refused_by_one_line(
    models: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(models)
    result = printed(*arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.strip().splitlines()
    assert message in line and "Undefined" not in line


def test_serving_everyone_is_allowed_by_a_flag_and_warned_of(models: Path) -> None:
    result = printed(models / "target", "--host", "0.0.0.0", "--allow-anyone")
    assert result.exit_code == 0
    assert "warning: 0.0.0.0 serves everyone in plain text" in result.stderr
    assert printed(models / "target", "--host", "127.0.0.2").stderr == ""


def test_the_version_is_printed() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"flyserve {VERSION}\n"
