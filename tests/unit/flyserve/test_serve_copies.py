"""Copies of the hub's models: which one `flyserve serve` takes, with and without a network."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from huggingface_hub import constants, scan_cache_dir
from typer.testing import CliRunner

from flyserve.cli import app
from flyserve.core.errors import ModelError
from services.common.hub import fetch, resolve
from services.common.model_source import model_folder
from tests.support.fake_hub import COMMIT, FakeHub
from tests.support.serve_line import content, printed, use_two_cores

Offline = Callable[[bool], None]
NEWER = "d" * 40


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    use_two_cores(monkeypatch)


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
def offline(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> Offline:
    def switch(is_offline: bool) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", is_offline)

    return switch


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
