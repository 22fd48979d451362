"""Models by folder and by hub id, with the hub's real cache and without a network."""

from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import filter_repo_objects

from flyserve.core.errors import ModelError
from services.common.model_source import EXCLUDED_FILES, TEXT_FILES, WEIGHT_FILES, is_hub_id, model_folder

COMMIT = "a" * 40


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache and no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def fetched(cache: Path) -> Path:
    """Create the files that the hub's client stores for `org/name@main`."""
    model = cache / "models--org--name"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)
    snapshot = model / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    return snapshot


@pytest.mark.parametrize("name", ["org/name@main", "org/na-me.1@v1.0", f"o/n@{COMMIT}", "org/name@refs/pr/1"])
def test_hub_ids(name: str) -> None:
    assert is_hub_id(Path(name))


@pytest.mark.parametrize(
    "name",
    ["org/name", "demo/models/target", "/a/b@c", "name@main", "../name@main/x", "org/name@", "a b/c@d"],
)
def test_names_of_folders(name: str) -> None:
    assert not is_hub_id(Path(name)) and model_folder(Path(name)) == Path(name)


def test_a_local_folder_takes_precedence(tmp_path: Path) -> None:
    (tmp_path / "org" / "name@main").mkdir(parents=True)
    assert model_folder(Path("org/name@main")) == Path("org/name@main")


@pytest.mark.parametrize("revision", ["main", COMMIT])
@pytest.mark.parametrize("has_weights", [True, False])
def test_a_cached_model_needs_no_network(cache: Path, revision: str, has_weights: bool) -> None:
    snapshot = fetched(cache)
    assert model_folder(Path(f"org/name@{revision}"), has_weights) == snapshot


@pytest.mark.parametrize("name", ["org/name@other", "org/more@main"])
def test_a_missing_network_is_reported_in_one_line(cache: Path, name: str) -> None:
    fetched(cache)
    with pytest.raises(ModelError) as caught:
        model_folder(Path(name))
    said = str(caught.value)
    assert said.startswith(f"{name} is not on this machine, and the model hub cannot be reached")
    assert "\n" not in said and "HF_HUB_OFFLINE" in said


def test_an_unreachable_hub_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")  # nothing listens there
    with pytest.raises(ModelError, match=r"cannot be reached|cannot be fetched") as caught:
        model_folder(Path("org/name@main"))
    assert "\n" not in str(caught.value)


def test_neither_pickles_nor_other_formats_are_downloaded() -> None:
    offered = [
        "config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "consolidated.safetensors",
        "modeling_own.py",
        "model.gguf",
        "original/params.json",
        "onnx/model.safetensors",
    ]
    wanted = [*TEXT_FILES, *WEIGHT_FILES]
    chosen = list(filter_repo_objects(offered, allow_patterns=wanted, ignore_patterns=list(EXCLUDED_FILES)))
    assert chosen == offered[:5]
    texts = filter_repo_objects(
        offered, allow_patterns=list(TEXT_FILES), ignore_patterns=list(EXCLUDED_FILES)
    )
    assert list(texts) == [*offered[:3], offered[4]]
