"""`flyserve serve` with GGUF files, and with names of the model hub."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from huggingface_hub import constants, scan_cache_dir
from typer.testing import CliRunner

from flyserve.cli import app
from flyserve.core.errors import ModelError
from flyserve.core.messages import Role
from orchestration.deployment.file import Deployment
from orchestration.deployment.plan import plan
from services.common.config import parse
from services.common.gguf.header import gguf_parts
from services.common.hub import fetch, resolve
from services.common.model_source import model_file, model_folder, model_name
from tests.support.fake_hub import COMMIT, FakeHub, fake_hub
from tests.support.gguf_files import described_llama, write_gguf
from tests.support.serve_line import content, printed, use_gpus, use_two_cores


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    use_two_cores(monkeypatch)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """A hub with `org/name`, and an empty cache."""
    config = {"num_attention_heads": 8, "num_key_value_heads": 8, "dtype": "bfloat16"}
    files = {"config.json": json.dumps(config).encode(), "model.safetensors": b"0" * 64}
    with fake_hub(files) as hub:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        for limit in ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"):
            monkeypatch.setattr(f"huggingface_hub.constants.{limit}", _HANG_S)
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield hub


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
    assert gguf_hub.cut.wait(timeout=_HANG_S)
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


def serve_and_end(*arguments: str) -> int:
    """Run a line that ends when its models are fetched; return the status."""
    flags = ("--port", "0", "--grpc-port", "0")
    result = CliRunner().invoke(app, ["serve", *arguments, *flags])
    print(result.output)  # shown where a test fails
    return result.exit_code


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal ends each start once its models are fetched."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("flyserve.cli.up.print_notes", end)


@pytest.fixture
def offline(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    def switch(is_offline: bool) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", is_offline)

    return switch


Offline = Callable[[bool], None]
NEWER = "d" * 40
_HANG_S = 120.0


@pytest.mark.parametrize("names", [("org/name",), ("org/name@v1",), ("org/name@refs/pr/1", "org/name@v2")])
def test_a_copy_of_the_hub_needs_no_network(
    hub: FakeHub, ends: None, offline: Offline, names: tuple[str, ...]
) -> None:
    assert {serve_and_end(name) for name in names} == {130}
    offline(True)
    for name in names:
        assert content(name)["target"]["model"] == f"org/name@{COMMIT}"
    assert "org/name@v3 is not on this machine" in printed("org/name@v3").stderr
    assert scan_cache_dir(constants.HF_HUB_CACHE).warnings == []


@pytest.mark.parametrize("name", ["org/name:Q4_K_M", "org/name@v1:Q8_K_XL", "org/name/a-Q8_0.gguf"])
def test_a_copy_of_a_gguf_file_needs_no_network(
    gguf_hub: FakeHub, ends: None, offline: Offline, name: str
) -> None:
    online = content(name)
    assert serve_and_end(name) == 130
    offline(True)
    assert content(name) == online
    assert "cannot be reached" in printed("org/name:UD-Q8_0").stderr


def test_files_of_one_revision_are_found_at_the_commits_that_it_had(
    gguf_hub: FakeHub, ends: None, offline: Offline
) -> None:
    serve_and_end("org/name:Q4_K_M")
    gguf_hub.commit = NEWER
    serve_and_end("org/name:Q8_0", "--draft", "org/name:Q4_K_M")
    gguf_hub.commit = "e" * 40
    serve_and_end("org/name:Q8_K_XL")
    offline(True)
    found = [content(f"org/name:{kind}")["target"]["model"] for kind in ("Q4_K_M", "Q8_0", "Q8_K_XL")]
    assert [name.partition("@")[2][0] for name in found] == ["d", "d", "e"]


def test_a_newer_commit_counts_once_it_is_complete(hub: FakeHub, ends: None, offline: Offline) -> None:
    def served() -> str:
        return str(content("org/name")["target"]["model"]).partition("@")[2]

    assert serve_and_end("org/name") == 130
    hub.commit, hub.files["model.safetensors"] = NEWER, b"1" * 64
    hub.lost.add("model.safetensors")
    assert served() == NEWER  # the hub is asked
    assert serve_and_end("org/name") == 2  # with the configuration alone
    offline(True)
    assert served() == COMMIT
    offline(False)
    hub.lost.clear()
    assert serve_and_end("org/name") == 130
    offline(True)
    assert served() == NEWER


def test_a_gguf_file_does_not_stand_for_the_weights_beside_it(
    gguf_hub: FakeHub, ends: None, offline: Offline
) -> None:
    gguf_hub.files |= {"model.safetensors": b"0", "config.json": b"{}"}
    serve_and_end("org/name:Q4_K_M")
    offline(True)
    assert content("org/name:Q4_K_M") and "is not on this machine" in printed("org/name").stderr


@pytest.mark.parametrize("fault", [503, 404, None])
def test_a_copy_is_served_where_the_hub_refuses_or_is_silent(
    hub: FakeHub,
    ends: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: int | None,
) -> None:
    serve_and_end("org/name")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 0.5)
    hub.commit = NEWER
    hub.refuses, hub.silence = fault or 0, None if fault else Event()
    try:
        assert content("org/name")["target"]["model"] == f"org/name@{COMMIT}"
        assert "the model hub did not answer, or refused, so a copy here is served: " in caplog.text
        assert (str(fault) if fault else "ReadTimeout") in caplog.text
        assert printed("org/name@v1").exit_code == 2
    finally:
        if hub.silence is not None:
            hub.silence.set()


@pytest.mark.parametrize("has_weights", [True, False])
def test_a_branch_in_a_deployment_is_read_from_its_newest_copy_where_the_hub_is_silent(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, has_weights: bool
) -> None:
    name, hub.silence = Path("org/name@main"), Event()
    hub.silence.set()
    copy = model_folder(name)
    hub.commit, hub.files["config.json"] = NEWER, b"{}"
    hub.lost.add("model.safetensors")
    hub.files["model.safetensors"] += b"1"
    with pytest.raises(ModelError):
        model_folder(name)
    hub.silence.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 0.5)
    try:
        assert model_folder(name, has_weights) == copy
        with pytest.raises(
            ModelError, match=r"org/name@v1 is not on this machine, and the model hub cannot be"
        ):
            model_folder(Path("org/name@v1"), has_weights)
    finally:
        hub.silence.set()


def test_a_cache_that_cannot_be_written_is_read(hub: FakeHub, ends: None, offline: Offline) -> None:
    name = resolve("org/name").name
    fetch(Path(name), lambda done, total: None)
    for folder in ("refs", "flyserve"):  # which a file blocks, also for root
        (Path(constants.HF_HUB_CACHE) / "models--org--name" / folder).write_text("")
    assert serve_and_end("org/name") == 130
    offline(True)
    assert serve_and_end(name) == 130


def test_starts_at_the_same_time_share_a_copy(hub: FakeHub, offline: Offline) -> None:
    model = Path(resolve("org/name").name)
    with ThreadPoolExecutor() as pool:
        folders = {pool.submit(fetch, model, lambda done, total: None, "org/name") for _ in range(8)}
    assert len({folder.result() for folder in folders}) == 1
    offline(True)
    assert content("org/name")["target"]["model"] == str(model)


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
