"""`flyserve serve`: the deployment file that a line stands for, and lines that are refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from flyserve.cli import app
from flyserve.core.errors import ModelError
from flyserve.core.messages import Role
from flyserve.core.version import VERSION
from orchestration.deployment.file import Deployment
from orchestration.deployment.plan import plan
from orchestration.machine import serving
from services.common.config import parse
from services.common.gguf.header import gguf_parts
from services.common.hub import fetch, resolve
from services.common.machine.gpus import Gpu
from services.common.machine.machine import Machine
from services.common.model_source import model_file, model_name
from tests.support.fake_hub import COMMIT, FakeHub, fake_hub
from tests.support.gguf_files import described_llama, write_gguf


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with two cores, 1 GB and no GPU, in the place of the one that runs the test."""
    made = Machine(cores=2, memory_bytes=10**9)
    monkeypatch.setattr(serving, "find_machine", lambda: made)
    return made


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 8 GPUs of 80 GB."""
    made = tuple(Gpu(f"GPU-{index}", 80 * 10**9) for index in range(8))
    monkeypatch.setattr(serving, "find_machine", lambda: Machine(64, 10**12, gpus=made, has_cuda=True))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """A hub with `org/name`, and an empty cache."""
    config = {"num_attention_heads": 8, "num_key_value_heads": 8, "dtype": "bfloat16"}
    files = {"config.json": json.dumps(config).encode(), "model.safetensors": b"0" * 64}
    with fake_hub(files) as hub:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield hub


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


def printed(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["serve", *map(str, arguments), "--print-config"])


def content(*arguments: str | Path) -> Any:
    result = printed(*arguments)
    assert result.exit_code == 0, result.stderr
    return yaml.safe_load(result.stdout)


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


def test_a_gguf_file_is_served_by_llama_cpp(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(models / "cache"))
    files = [write_gguf(models / f"{name}.gguf", described_llama(), {}) for name in ("large", "small")]
    made = content(files[0], "--draft", files[1], "--sub-draft", "suffix", "--max-model-len", "9")
    on_cpu = {"engine": "llamacpp", "gpus": 0, "threads": "auto", "max_model_len": 9, "max_threads": 1}
    assert made["target"] == {"model": str(files[0]), **on_cpu}
    assert made["drafter"] == {"model": str(files[1]), **on_cpu}
    specs = {spec.role: spec for spec in plan(parse(Deployment, made, "test"), "here:1")}
    assert specs[Role.DRAFTER].config["engine"] == "llamacpp" and "declared_cpus" in specs[Role.DRAFTER].hints
    mixed = content(models / "target", "--draft", files[1], "--engine", "builtin")
    assert (mixed["target"]["engine"], mixed["drafter"]["engine"]) == ("builtin", "llamacpp")
    assert mixed["drafter"]["vocabulary"] == "text"


def test_gpus_are_left_to_the_library_of_a_gguf_file(gpus: None, models: Path) -> None:
    assert content(write_gguf(models / "m.gguf", described_llama(), {}))["target"]["gpus"] == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--engine", "builtin"], "a GGUF file, but engine is builtin: set engine: llamacpp"),
        (["--dtype", "bfloat16"], "target.dtype: is 'bfloat16'"),
        (["--quantization", "int8"], "engine llamacpp has no such key, only builtin"),
        (["--shards", "2"], "target.shards: engine llamacpp has no such key"),
        (["--max-sequences", "257"], "target.max_sequences: is 257: must be at most 256"),
    ],
)
def test_what_llama_cpp_does_not_have_is_said(models: Path, flags: list[str], message: str) -> None:
    result = printed(write_gguf(models / "m.gguf", described_llama(), {}), *flags)
    assert result.exit_code == 2 and message in result.stderr


@pytest.fixture
def gguf_hub(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """The hub, with GGUF files alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = write_gguf(tmp_path / "m.gguf", described_llama(), {}).read_bytes()
    names = ("a-Q4_K_M.gguf", "a-Q8_0.gguf", *PARTS, "mmproj-Q8_0.gguf", "imatrix.gguf")
    hub.files = {"README.md": b"", **{name: model + name.encode() for name in names}}
    return hub


PARTS = tuple(f"big/a-UD-Q8_K_XL-0000{number}-of-00002.gguf" for number in (1, 2))


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("org/name:Q4_K_M", "a-Q4_K_M.gguf"),
        ("org/name@main:q8_0", "a-Q8_0.gguf"),
        ("org/name:Q8_K_XL", PARTS[0]),
        ("org/name/a-Q8_0.gguf", "a-Q8_0.gguf"),
        (f"org/name@refs/pr/1/{PARTS[0]}", PARTS[0]),
        (f"org/name@{COMMIT}/a-Q8_0.gguf", "a-Q8_0.gguf"),
    ],
)
def test_a_gguf_file_of_the_hub_is_named_by_its_path_or_quantization(
    gguf_hub: FakeHub, name: str, file: str
) -> None:
    made = content(name, "--draft", "org/name:Q4_K_M") if "8" in file else content(name)
    assert (made["target"]["model"], made["target"]["engine"]) == (f"org/name@{COMMIT}/{file}", "llamacpp")
    assert gguf_hub.fetched == []


def test_the_only_gguf_file_of_a_repository_needs_no_name(gguf_hub: FakeHub) -> None:
    del gguf_hub.files["a-Q4_K_M.gguf"], gguf_hub.files["a-Q8_0.gguf"]
    assert content("org/name")["target"]["model"] == f"org/name@{COMMIT}/{PARTS[0]}"
    assert resolve("org/name").weight_bytes == sum(len(gguf_hub.files[part]) for part in PARTS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "org/name",
            f"org/name has several GGUF files (a-Q4_K_M.gguf, a-Q8_0.gguf, {PARTS[0]}): name one, such as"
            " org/name/a-Q4_K_M.gguf",
        ),
        ("org/name@main:a", "org/name@main:a means several GGUF files (a-Q4_K_M.gguf, a-Q8_0.gguf, big"),
        ("org/name:Q4_K", "org/name has no GGUF file Q4_K; it has a-Q4_K_M.gguf, a-Q8_0.gguf, big/a-UD"),
        ("org/name/b.gguf", "org/name has no GGUF file b.gguf; it has a-Q4_K_M.gguf"),
        (f"org/name/{PARTS[1]}", f"org/name has no GGUF file {PARTS[1]}; it has a-Q4_K_M.gguf"),
        ("org/name:mmproj", "org/name has no GGUF file mmproj; it has a-Q4_K_M.gguf"),
        ("org/other:Q4_0", "org/other@main: no such folder, and no such model on the hub"),
    ],
)
def test_a_gguf_name_that_fits_no_file_or_several_lists_them(
    gguf_hub: FakeHub, name: str, message: str
) -> None:
    result = printed(name)
    assert result.exit_code == 2 and message in result.stderr


def test_a_gguf_file_of_the_hub_is_fetched_once_with_all_its_parts(
    gguf_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    model = Path(resolve("org/name:Q8_K_XL").name)
    folder = fetch(model, lambda done, total: seen.append((done, total)))
    assert (folder / "tokenizer.json").is_file() and sorted(gguf_hub.fetched) == [*PARTS]
    assert seen[-1] == (2 * len(gguf_hub.files[PARTS[0]]),) * 2
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert gguf_parts(model_file(model))[1].read_bytes() == gguf_hub.files[PARTS[1]]
    named = f"org/name@{COMMIT}"
    assert content(f"{named}:Q8_K_XL")["target"]["model"] == content(named)["target"]["model"] == str(model)
    assert "cannot be reached" in printed(f"{named}:Q8_0").stderr
    assert model_name(model) == "a-UD-Q8_K_XL-00001-of-00002"


@pytest.mark.parametrize("name", ["org/name", "org/name@main", f"org/name@{COMMIT}"])
def test_a_name_of_the_hub_is_printed_with_its_commit(hub: FakeHub, name: str) -> None:
    assert content(name)["target"]["model"] == f"org/name@{COMMIT}"
    assert hub.fetched == ["config.json"]  # a line that is only printed downloads no weights


def test_a_copy_of_the_hub_needs_no_network(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    fetch(Path("org/name@main"), lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(hub.files["config.json"]) + 64,) * 2
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert content("org/name")["target"]["model"] == f"org/name@{COMMIT}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/other", "org/other@main: no such folder, and no such model on the hub, or it is private"),
        ("org/name@gone", "the model hub has org/name, but no revision gone: use a branch"),
        ("some/model.gguf", "target.model: no file some/model.gguf"),
    ],
)
def test_a_model_that_the_hub_lacks_is_said_with_the_remedy(hub: FakeHub, name: str, message: str) -> None:
    result = printed(name)
    assert result.exit_code == 2 and message in result.stderr


def test_no_network_is_said_with_the_remedy(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        ModelError, match=r"org/name@main is not on this machine, and .*flyserve pull hf://org"
    ):
        resolve("org/name")


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
