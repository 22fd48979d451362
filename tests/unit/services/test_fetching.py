"""Copies of models: complete or invisible, checked by hash, resumed file by file."""

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from flyserve.core.errors import ConfigError, ModelError, NotReady
from services.common.fetching.fetch import canonical_name, fetch_model, source_of, wait_until_filled
from services.common.fetching.manifest import MANIFEST, Manifest
from tests.support.fake_hub import FakeHub, fake_hub

MODEL = {
    "config.json": b"{}",
    "tokenizer.json": b'{"model": 1}',
    "model-1.safetensors": b"weights" * 1000,
    "model-2.safetensors": b"others" * 1000,
}
UNWANTED = {"README.md": b"text", "pytorch_model.bin": b"pickle", "consolidated.safetensors": b"again"}
HUB = "hf://org/name@main"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub(MODEL | UNWANTED) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield hub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model and other files."""
    folder = tmp_path / "source"
    (folder / "onnx").mkdir(parents=True)
    for name, content in (MODEL | UNWANTED).items():
        (folder / name).write_bytes(content)
    (folder / "onnx" / "model.safetensors").write_bytes(b"another format")
    return folder


class Progress:
    """The reports of a copy; it can be interrupted after a file."""

    def __init__(self, last: str = "") -> None:
        self.last = last
        self.seen: list[tuple[str, int, int]] = []

    def __call__(self, name: str, done: int, total: int) -> None:
        self.seen.append((name, done, total))
        if name == self.last:
            raise KeyboardInterrupt


def pulled(source: str, destination: Path, verifies: bool = False) -> Manifest:
    return fetch_model(source_of(source), destination, Progress(), verifies)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != MANIFEST}


def test_a_model_of_the_hub_is_copied_with_nothing_else(hub: FakeHub, tmp_path: Path) -> None:
    manifest = pulled("org/name@main", tmp_path / "deep" / "copy")
    assert content(tmp_path / "deep" / "copy") == MODEL
    assert manifest.source == HUB
    assert {file.name: file.sha256 for file in manifest.files} == {
        name: hashlib.sha256(data).hexdigest() for name, data in MODEL.items()
    }
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["copy"]


def test_a_folder_is_copied_by_path_and_by_url(folder: Path, tmp_path: Path) -> None:
    for number, source in enumerate((str(folder), f"file://{folder}", f"file://{folder}/")):
        pulled(source, tmp_path / f"copy-{number}")
        assert content(tmp_path / f"copy-{number}") == MODEL


def test_a_complete_copy_is_left_alone(hub: FakeHub, tmp_path: Path) -> None:
    first = pulled(HUB, tmp_path / "copy")
    hub.fetched.clear()
    assert pulled(HUB, tmp_path / "copy") == first
    assert hub.fetched == []


@pytest.mark.parametrize("kind", ["hub", "folder"])
def test_an_interrupted_copy_is_invisible_and_goes_on(
    kind: str, hub: FakeHub, folder: Path, tmp_path: Path
) -> None:
    source, destination = HUB if kind == "hub" else str(folder), tmp_path / "copy"
    with pytest.raises(KeyboardInterrupt):
        fetch_model(source_of(source), destination, Progress(last="model-1.safetensors"))
    assert not destination.exists()
    done = set(hub.fetched)
    hub.fetched.clear()
    # Remains of an attempt that was killed.
    part = tmp_path / ".copy.part"
    (part / ".cache" / "huggingface").mkdir(parents=True, exist_ok=True)
    (part / "model-2.safetensors.begun").write_bytes(b"half")
    progress = Progress()
    fetch_model(source_of(source), destination, progress)
    assert content(destination) == MODEL
    assert progress.seen[-1][1:] == (size := sum(map(len, MODEL.values())), size)
    if kind == "hub":
        assert "model-1.safetensors" in done
        assert hub.fetched == ["model-2.safetensors"]


def test_a_source_that_changed_meanwhile_is_fetched_again(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fetch_model(source_of(HUB), tmp_path / "copy", Progress(last="model-2.safetensors"))
    hub.files |= {"model-1.safetensors": b"WEIGHTS" * 1000, "config.json": b"[]"}
    del hub.files["tokenizer.json"]
    hub.fetched.clear()
    pulled(HUB, tmp_path / "copy")
    assert set(hub.fetched) == {"model-1.safetensors", "config.json"}
    assert content(tmp_path / "copy") == {name: hub.files[name] for name in MODEL if name in hub.files}


def test_what_another_source_left_does_not_get_in(hub: FakeHub, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fetch_model(source_of(HUB), tmp_path / "copy", Progress(last="model-1.safetensors"))
    (folder / "model-1.safetensors").unlink()
    pulled(str(folder), tmp_path / "copy")
    assert content(tmp_path / "copy").keys() == MODEL.keys() - {"model-1.safetensors"}


@pytest.mark.parametrize("name", ["model-2.safetensors", "config.json"])
def test_a_damaged_file_of_the_hub_is_found(name: str, hub: FakeHub, tmp_path: Path) -> None:
    hub.sent[name] = MODEL[name].replace(MODEL[name][:1], b"?")
    with pytest.raises(ModelError, match=rf"hf://org/name@main: {name} has the \w+ ?\w* \w+ instead of \w+"):
        pulled(HUB, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    hub.sent.clear()
    hub.fetched.clear()
    pulled(HUB, tmp_path / "copy")
    assert content(tmp_path / "copy") == MODEL and name in hub.fetched


def test_a_folder_can_name_its_hashes(folder: Path, tmp_path: Path) -> None:
    lines = [f"{hashlib.sha256(data).hexdigest()}  {name}" for name, data in MODEL.items()]
    (folder / "SHA256SUMS").write_text("\n".join(["# of the vendor", *lines]))
    pulled(str(folder), tmp_path / "copy")
    (folder / "config.json").write_bytes(b"[]")
    with pytest.raises(ModelError, match=r"config\.json has the sha256 .* damaged, or has changed"):
        pulled(str(folder), tmp_path / "other")


def test_a_copy_is_a_source_with_hashes(folder: Path, tmp_path: Path) -> None:
    pulled(str(folder), tmp_path / "copy")
    (tmp_path / "copy" / "model-1.safetensors").write_bytes(b"WEIGHTS" * 1000)
    with pytest.raises(ModelError, match=r"model-1\.safetensors has the sha256"):
        pulled(str(tmp_path / "copy"), tmp_path / "second")


def test_the_files_of_a_complete_copy_can_be_verified(folder: Path, tmp_path: Path) -> None:
    pulled(str(folder), tmp_path / "copy")
    pulled(str(folder), tmp_path / "copy", verifies=True)
    weights = tmp_path / "copy" / "model-1.safetensors"
    weights.write_bytes(b"WEIGHTS" * 1000)
    pulled(str(folder), tmp_path / "copy")
    with pytest.raises(ModelError, match=r"model-1\.safetensors: has the sha256 .* pull again"):
        pulled(str(folder), tmp_path / "copy", verifies=True)
    weights.unlink()
    with pytest.raises(ModelError, match="is missing or has another size"):
        pulled(str(folder), tmp_path / "copy")


def test_other_content_of_the_destination_is_kept(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(ConfigError, match="is no copy that flyserve pull made"):
        pulled(str(folder), tmp_path / "mine")
    pulled(str(folder), tmp_path / "copy")
    with pytest.raises(ConfigError, match=r"holds /.*source, not hf://org/name@main"):
        pulled(HUB, tmp_path / "copy")


@pytest.mark.parametrize(
    ("missing", "said"), [("config.json", "no config.json"), ("*.safetensors", "no weights")]
)
def test_a_folder_that_is_no_model_is_refused(missing: str, said: str, folder: Path, tmp_path: Path) -> None:
    for path in folder.glob(missing):
        path.unlink()
    with pytest.raises(ModelError, match=said):
        pulled(str(folder), tmp_path / "copy")


def test_a_destination_that_is_a_link_to_nothing_is_refused(folder: Path, tmp_path: Path) -> None:
    (link := tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigError, match="link: is a link to nothing: name another folder"):
        fetch_model(source_of(str(folder)), link, Progress())
    assert not list(tmp_path.glob(".*"))


def test_a_source_that_cannot_be_read_leaves_no_folder(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ModelError):
        fetch_model(source_of(str(folder)), tmp_path / "copy", Progress())
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(ConfigError, match="MODEL: is empty"):
        canonical_name("")


def test_two_do_not_fill_one_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / ".copy.part").mkdir()
    with (tmp_path / ".copy.part" / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ModelError, match="another flyserve pull fills this folder"):
            pulled(str(folder), tmp_path / "copy")
    pulled(str(folder), tmp_path / "copy")


def test_a_volume_that_is_too_small_is_found_before(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**6, 10**6 - 99, 99))
    with pytest.raises(ModelError, match=r"has 0\.0 GB free, but needs 0\.0 GB: enlarge the volume"):
        pulled(str(folder), tmp_path / "copy")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hf://org/name", "hf://org/name: names no revision: .* hf://org/name@revision"),
        ("org/name", "no folder org/name, and no model of the hub: .* hf://org/name@revision"),
        ("oci://registry/model:1", "images are not fetched: mount it as a volume"),
        ("s3://bucket/name", "client of this store is missing: Install s3fs"),
        ("magic://name", "magic://name: cannot be read: Protocol not known: magic"),
    ],
)
def test_sources_that_cannot_be_read_say_why(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        source_of(name)


def test_faults_of_a_source_are_one_line(hub: FakeHub, tmp_path: Path) -> None:
    for name, said in (
        ("hf://org/name@gone", "has org/name, but no revision gone"),
        ("hf://org/other@main", "no such model on the hub"),
        (f"file://{tmp_path}/absent", "cannot be listed: FileNotFoundError"),
    ):
        with pytest.raises(ModelError, match=said) as caught:
            pulled(name, tmp_path / "copy")
        assert "\n" not in str(caught.value)


def test_without_a_network_the_hub_cannot_be_reached(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE"):
        pulled(HUB, tmp_path / "copy")


def test_a_reader_waits_until_the_copy_is_complete(folder: Path, tmp_path: Path) -> None:
    destination, name, now = tmp_path / "copy", canonical_name(str(folder)), iter(range(100))

    def pause(_: float) -> None:
        pulled(str(folder), destination)

    wait_until_filled(name, destination, 60.0, pause, lambda: float(next(now)))
    assert destination.is_dir()
    # No client of the store is needed to wait.
    with pytest.raises(ConfigError, match=r"not s3://bucket/name"):
        wait_until_filled("s3://bucket/name", destination, 0.0)
    with pytest.raises(NotReady, match="does not hold s3://bucket/name after 5 s"):
        wait_until_filled(
            "s3://bucket/name", tmp_path / "absent", 5.0, lambda _: None, lambda: float(next(now))
        )


def test_a_manifest_that_is_broken_is_none(folder: Path, tmp_path: Path) -> None:
    for text in ("{", "[]", json.dumps({"source": "x", "files": {"a": {}}})):
        (tmp_path / MANIFEST).write_text(text)
        assert Manifest.of(tmp_path) is None
