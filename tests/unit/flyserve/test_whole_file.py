"""Files that are written at once: what a path may lead to."""

import os
import stat
from pathlib import Path

import pytest

from flyserve.core.errors import ConfigError
from flyserve.whole_file import check_writable, write_whole


def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    file, link, absent = tmp_path / "folder" / "file", tmp_path / "link", tmp_path / "absent"
    file.parent.mkdir()
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    absent.symlink_to(tmp_path / "made" / "new")
    write_whole(link, "new")
    write_whole(absent, "first")
    assert link.is_symlink() and file.read_text() == "new" and stat.S_IMODE(file.stat().st_mode) == 0o640
    assert absent.is_symlink() and (tmp_path / "made" / "new").read_text() == "first"
    assert [path.name for path in file.parent.iterdir()] == ["file"]


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        for path in (pipe, link):
            write_whole(path, "text")
            assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert pipe.is_fifo() and link.is_symlink()


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: Is a directory"):
        write_whole(tmp_path, "text")
    assert not list(tmp_path.iterdir())


def test_a_path_is_checked_before_there_is_a_text(tmp_path: Path) -> None:
    (file := tmp_path / "file").write_text("old")
    check_writable(file)
    check_writable(tmp_path / "new")
    (loop := tmp_path / "loop").symlink_to(loop)
    for path in (file / "below", tmp_path / ("n" * 255), loop):
        with pytest.raises(ConfigError, match="cannot be written"):
            check_writable(path)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "loop"} and file.read_text() == "old"
