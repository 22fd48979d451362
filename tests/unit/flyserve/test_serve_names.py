"""`flyserve serve` with GGUF files, and with names of the model hub."""

from pathlib import Path

import pytest

from flyserve.core.errors import ModelError
from flyserve.core.messages import Role
from orchestration.deployment.file import Deployment
from orchestration.deployment.plan import plan
from services.common.config import parse
from services.common.gguf.header import gguf_parts
from services.common.hub import fetch, resolve
from services.common.model_source import model_file, model_folder, model_name
from tests.support.fake_hub import COMMIT, HANG_S, PARTS, FakeHub
from tests.support.gguf_files import described_llama, write_gguf
from tests.support.serve_line import content, printed, use_gpus, use_two_cores


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    use_two_cores(monkeypatch)


def test_a_gguf_file_is_served_by_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = [write_gguf(tmp_path / f"{name}.gguf", described_llama(), {}) for name in ("large", "small")]
    made = content(files[0], "--draft", files[1], "--sub-draft", "suffix", "--max-model-len", "9")
    on_cpu = {"engine": "llamacpp", "gpus": 0, "threads": "auto", "max_model_len": 9, "max_threads": 1}
    assert made["target"] == {"model": str(files[0]), **on_cpu}
    assert made["drafter"] == {"model": str(files[1]), **on_cpu}
    specs = {spec.role: spec for spec in plan(parse(Deployment, made, "test"), "here:1")}
    assert specs[Role.DRAFTER].config["engine"] == "llamacpp" and "declared_cpus" in specs[Role.DRAFTER].hints
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    mixed = content(tmp_path / "target", "--draft", files[1], "--engine", "builtin")
    assert (mixed["target"]["engine"], mixed["drafter"]["engine"]) == ("builtin", "llamacpp")
    assert mixed["drafter"]["vocabulary"] == "text"


def test_gpus_are_left_to_the_library_of_a_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch)
    assert content(write_gguf(tmp_path / "m.gguf", described_llama(), {}))["target"]["gpus"] == 0


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
def test_what_llama_cpp_does_not_have_is_said(tmp_path: Path, flags: list[str], message: str) -> None:
    result = printed(write_gguf(tmp_path / "m.gguf", described_llama(), {}), *flags)
    assert result.exit_code == 2 and message in result.stderr


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


@pytest.mark.parametrize("revision", ["main", COMMIT])
def test_a_router_reads_the_tokenizer_of_a_gguf_file_without_its_weights(
    gguf_hub: FakeHub, revision: str
) -> None:
    whole = model_folder(Path(f"org/name@{COMMIT}/a-Q4_K_M.gguf"))
    gguf_hub.fetched.clear()
    weights = bytes(1 << 26)  # more than the sockets of client and server hold
    gguf_hub.files["a-Q8_0.gguf"] += weights
    name = Path(f"org/name@{revision}/a-Q8_0.gguf")
    folder = model_folder(name, has_weights=False)
    assert [file.read_bytes() for file in sorted(folder.iterdir())] == [
        file.read_bytes() for file in sorted(whole.iterdir())
    ]
    assert gguf_hub.cut.wait(timeout=HANG_S)
    assert model_folder(name, has_weights=False) == folder and gguf_hub.fetched == ["a-Q8_0.gguf"]
    gguf_hub.refuses = 503
    assert model_folder(name, has_weights=False) == folder
    gguf_hub.refuses = 0
    fetched = model_file(name)
    assert model_folder(name, has_weights=False) == model_folder(fetched) != folder


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK", "is not a GGUF file: it does not begin with GGUF"),
        (b"GGUF\3\0\0\0", "is a damaged or incomplete GGUF file: it ends within its header"),
        (None, "org/name@main cannot be downloaded from the model hub: "),
    ],
)
def test_a_router_names_a_gguf_file_that_it_cannot_read(
    gguf_hub: FakeHub, content: bytes | None, message: str
) -> None:
    if content is not None:
        gguf_hub.files["b.gguf"] = content
    with pytest.raises(ModelError) as caught:
        model_folder(Path("org/name@main/b.gguf"), has_weights=False)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    gguf_hub.refuses = 503
    with pytest.raises(ModelError, match=r"org/name@v1 cannot be downloaded .*503"):
        model_folder(Path("org/name@v1/b.gguf"), has_weights=False)


@pytest.mark.parametrize("name", ["org/name", "org/name@main", f"org/name@{COMMIT}"])
def test_a_name_of_the_hub_is_printed_with_its_commit(hub: FakeHub, name: str) -> None:
    assert content(name)["target"]["model"] == f"org/name@{COMMIT}"
    assert hub.fetched == ["config.json"]  # a line that is only printed downloads no weights


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
