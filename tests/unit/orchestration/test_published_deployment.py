"""The file by which commands find a local deployment: whose it is, and how it is written."""

import json
import os
from pathlib import Path

import pytest

from orchestration.local.local_ray import find_local_deployment, publish_local_deployment


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (folder := tmp_path / "flyserve-1").mkdir()
    return folder


def test_a_process_that_has_the_id_of_an_ended_one_is_no_deployment(folder: Path) -> None:
    publish_local_deployment(folder, "main", "127.0.0.1:9")
    assert find_local_deployment("main") is not None
    file = folder / "deployment.json"
    left_behind = {**json.loads(file.read_text()), "pid": os.getppid()}
    file.write_text(json.dumps(left_behind))
    assert find_local_deployment("main") is None


def test_a_reader_sees_the_file_before_or_after_a_write_and_nothing_between(folder: Path) -> None:
    publish_local_deployment(folder, "main", "127.0.0.1:9")
    with (folder / "deployment.json").open() as reader:
        publish_local_deployment(folder, "main", "127.0.0.1:9", "127.0.0.1:50051")
        assert json.load(reader)["address"] == ""
    found = find_local_deployment("main")
    assert found is not None and found.address == "127.0.0.1:50051"
    assert [path.name for path in folder.iterdir()] == ["deployment.json"]
