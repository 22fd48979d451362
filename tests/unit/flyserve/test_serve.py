"""`flyserve serve`: the deployment file that a line stands for, and lines that are refused."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flyserve.cli import app
from flyserve.core.messages import Role
from flyserve.core.version import VERSION
from orchestration.deployment.file import Deployment
from orchestration.deployment.plan import plan
from orchestration.machine import serving
from services.common.config import parse
from services.common.machine.machine import Machine
from tests.support.serve_line import content, printed, use_gpus, use_two_cores


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    use_two_cores(monkeypatch)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch)


_CPU = {"gpus": 0, "threads": "auto"}
_ALONE = {**_CPU, "max_threads": 2}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with the folders `target`, `drafter` and `foreign`, whose tokens are others."""
    for name in ("target", "drafter", "foreign"):
        (tmp_path / name).mkdir()
        vocabulary = {"a": 0, "b" if name != "foreign" else "c": 1}
        (tmp_path / name / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    return tmp_path


def test_a_target_alone_serves_http_where_other_servers_do(models: Path) -> None:
    assert content(models / "target") == {
        "target": {"model": str(models / "target"), **_ALONE},
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
        *("--gpus", "0", "--threads", "3", "--quantization", "int8", "--max-model-len", "512"),
        *("--max-sequences", "7", "--mode", "exact", "--served-model-name", "mine"),
    )
    size = {
        "dtype": "float32",
        "engine": "builtin",
        "gpus": 0,
        "threads": 3,
        "max_model_len": 512,
        "max_sequences": 7,
    }
    assert made == {
        "target": {
            "model": str(models / "target"),
            "replicas": 2,
            "quantization": "int8",
            **size,
        },
        "drafter": {"model": str(models / "drafter"), **size},
        "sub_drafter": {"engine": "suffix"},
        "router": {"host": "0.0.0.0", "http_port": 0, "grpc_port": 9, "model_name": "mine"},
        "speculation": {"mode": "exact"},
        "security": {"auth_tokens_file": str(models / "keys")},
    }


def test_drafts_need_no_model(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models)
    (models / "suffix").mkdir()
    without_model = ("--draft", "suffix", "--sub-draft", "none")
    made = content("target", *without_model, "--dtype", "float32", "--engine", "vllm")
    assert made["drafter"] == {"engine": "suffix"} and "sub_drafter" not in made
    assert made["target"]["dtype"] == "float32"
    (models / "suffix" / "tokenizer.json").write_text((models / "target" / "tokenizer.json").read_text())
    assert content("target", "--draft", "./suffix")["drafter"]["model"] == str(models / "suffix")


def test_a_drafter_with_other_tokens_is_mapped_to_those_of_the_target(models: Path) -> None:
    made = content(models / "target", "--draft", models / "foreign")
    assert (made["drafter"]["model"], made["drafter"]["vocabulary"]) == (str(models / "foreign"), "text")
    drafters = [spec for spec in plan(parse(Deployment, made, "test"), "here:1") if spec.role is Role.DRAFTER]
    assert drafters[0].config["target_tokenizer"] == str(models / "target")


def weigh(models: Path, gigabytes: int) -> None:
    """Give the target this number of bytes of weights, which take no space on the disk, and 64 heads."""
    config = {"num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28_672}
    (models / "target" / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    with (models / "target" / "model.safetensors").open("wb") as file:
        file.truncate(gigabytes * 10**9)


def test_a_target_takes_all_gpus(models: Path, gpus: None) -> None:
    weigh(models, 141)
    target = content(models / "target")["target"]
    assert (target["gpus"], target["shards"], target["kv_tokens"]) == (1, 8, "auto")
    assert content(models / "target", "--gpus", "4")["target"]["shards"] == 4
    assert content(models / "target", "--gpus", "0", "--dtype", "float32")["target"]["gpus"] == 0
    assert content(models / "target", "--tensor-parallel-size", "4")["target"]["replicas"] == 2


def test_a_pair_gets_a_gpu_for_every_process(models: Path, gpus: None) -> None:
    weigh(models, 100)
    made = content(models / "target", "--draft", models / "drafter")
    assert (made["target"]["gpus"], made["target"]["shards"], made["target"]["replicas"]) == (1, 2, 3)
    assert made["drafter"]["gpus"] == 1
    specs = plan(parse(Deployment, made, "test"), "here:1")
    assert [(spec.role, spec.num_gpus, spec.shards) for spec in specs] == [
        (Role.DRAFTER, 1, 1),
        *[(Role.TARGET, 1, 2)] * 3,
    ]
    assert all(spec.config["device"] == "cuda" for spec in specs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpus", "9"), "--gpus: is 9, but this machine has 8"),
        (("--gpus", "1"), "target: it cannot be placed on 1 free GPUs: its weights take 141.0 GB"),
        (("--shards", "3"), "target: shards 3 and replicas 1 cannot be placed on 8 free GPUs"),
    ],
)
def test_too_few_gpus_are_rejected(
    models: Path, gpus: None, arguments: tuple[str, str], message: str
) -> None:
    weigh(models, 141)
    result = printed(models / "target", *arguments)
    assert result.exit_code == 2 and message in result.stderr


def test_a_model_larger_than_the_memory_is_rejected_before_it_is_loaded(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weigh(models, 2)
    limited = Machine(cores=2, memory_bytes=10**9, memory_limit=10**9)
    monkeypatch.setattr(serving, "find_machine", lambda: limited)
    result = printed(models / "target")
    assert result.exit_code == 2
    assert "the weights take 2.0 GB of memory (target.model" in result.stderr
    assert "but 1.0 GB are available, within the limit of 1.0 GB of this container" in result.stderr
    assert printed(models / "target", "--quantization", "int8").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("absent",), "target.model: no folder absent; a model of the hub is written org/name"),
        (("target", "--draft", "target"), "--draft: is target, the target itself"),
        (
            ("target", "--sub-draft", "suffix"),
            "--sub-draft: is suffix, which helps a drafter: give --draft too, or only --draft suffix",
        ),
        (
            ("target", "--draft", "suffix", "--sub-draft", "suffix"),
            "--sub-draft: is suffix, which helps a drafter that runs a model, but --draft is suffix",
        ),
        (
            ("target", "--draft", "drafter", "--sub-draft", "magic"),
            "--sub-draft: is 'magic', must be suffix or none",
        ),
        (
            ("target", "--draft", "drafter", "--sub-draft", "ngram"),
            "must be suffix or none; ngram is removed: use suffix, which looks",
        ),
        (("target", "--draft", "ngram"), "drafter.model: no folder ngram; a model of the hub is written"),
        (("target", "--draft", "ngram"), "FILE.gguf; ngram is removed: use suffix, which looks tokens up in"),
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


def test_a_number_of_gpus_is_one_or_auto(models: Path) -> None:
    result = printed(models / "target", "--gpus", "all")
    assert result.exit_code == 2 and "must be auto or a number" in result.stderr


def test_serving_everyone_is_allowed_by_a_flag_and_warned_of(models: Path) -> None:
    result = printed(models / "target", "--host", "0.0.0.0", "--allow-anyone")
    assert result.exit_code == 0
    assert "warning: 0.0.0.0 serves everyone in plain text" in result.stderr
    assert printed(models / "target", "--host", "127.0.0.2").stderr == ""


def test_the_version_is_printed() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"flyserve {VERSION}\n"
