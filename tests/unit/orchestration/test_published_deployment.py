"""The file by which commands find a local deployment: whose it is, and how it is written."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestration.local.local_ray import find_local_deployment, publish_local_deployment


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (folder := tmp_path / "flyserve-1").mkdir()
    return folder


@pytest.fixture
def other() -> Iterator[int]:
    """Id of a process that started after this one."""
    waiting = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_has_the_id_of_an_ended_one_is_no_deployment(folder: Path, other: int) -> None:
    publish_local_deployment(folder, "main", "127.0.0.1:9")
    assert find_local_deployment("main") is not None
    file = folder / "deployment.json"
    left_behind = {**json.loads(file.read_text()), "pid": other}
    file.write_text(json.dumps(left_behind))
    assert find_local_deployment("main") is None


def test_a_deployment_of_an_earlier_version_is_found_without_its_time(folder: Path) -> None:
    publish_local_deployment(folder, "main", "127.0.0.1:9")
    file = folder / "deployment.json"
    earlier = json.loads(file.read_text())
    del earlier["started"]
    file.write_text(json.dumps(earlier))
    assert find_local_deployment("main") is not None


def test_a_reader_sees_the_file_before_or_after_a_write_and_nothing_between(folder: Path) -> None:
    publish_local_deployment(folder, "main", "127.0.0.1:9")
    with (folder / "deployment.json").open() as reader:
        publish_local_deployment(folder, "main", "127.0.0.1:9", "127.0.0.1:50051")
        assert json.load(reader)["address"] == ""
    found = find_local_deployment("main")
    assert found is not None and found.address == "127.0.0.1:50051"
    assert [path.name for path in folder.iterdir()] == ["deployment.json"]
