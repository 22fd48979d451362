"""A Ray that does not start: other tries while there is time, then one line with the remedy. Its folder."""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from flyserve.core.errors import NotReady
from orchestration.local.folder import own_folder, temporary_folder
from orchestration.local.local_ray import local_ray, prepare_environment


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Exception | None]]:
    """The results of the next starts of Ray, None for one that succeeds; none starts a process."""
    results: list[Exception | None] = []

    def init(**options: object) -> None:
        if (result := results.pop(0)) is not None:
            raise result

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(
        ray, "get_runtime_context", lambda: type("Context", (), {"gcs_address": "127.0.0.1:1"})()
    )
    yield results
    assert not results


def test_ray_is_started_again_while_there_is_time(starts: list[Exception | None], tmp_path: Path) -> None:
    starts += [RuntimeError("timed out"), RuntimeError("timed out"), RuntimeError("timed out"), None]
    with local_ray(1, (), tmp_path, False, timeout_s=60) as address:
        assert address == "127.0.0.1:1"


@pytest.mark.parametrize(
    ("error", "timeout_s", "message"),
    [
        (
            Exception("the node timed out\nduring startup"),
            0.0,
            "Ray did not start within 0 s: .*the node timed out.* more time with --startup-timeout-s",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            60.0,
            "no space is left in .*; free some, or set TMPDIR",
        ),
    ],
)
def test_the_last_failure_is_one_line_with_the_remedy(
    starts: list[Exception | None], tmp_path: Path, error: Exception, timeout_s: float, message: str
) -> None:
    starts.append(error)
    with pytest.raises(NotReady, match=message) as found, local_ray(1, (), tmp_path, False, timeout_s):
        pass
    assert "\n" not in str(found.value)


def test_a_disk_that_is_almost_full_is_refused_before_ray_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=3 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    message = "has 3 MB of free space, Ray needs 256 MB: free some, or set TMPDIR"
    with pytest.raises(NotReady, match=message), temporary_folder():
        pass


def test_the_folder_is_locked_against_programs_that_delete_old_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with own_folder() as folder:
        handle = os.open(folder, os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(handle)
    assert not list(tmp_path.iterdir())


def test_a_node_waits_longer_for_its_agent_than_by_default_unless_it_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "RAY_agent_register_timeout_ms"
    for given, expected in (({}, "600000"), ({name: "5000"}, "5000")):
        monkeypatch.setattr(os, "environ", dict(given))
        prepare_environment()
        assert os.environ[name] == expected
