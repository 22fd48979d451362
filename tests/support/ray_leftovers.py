"""Check that tests on Ray leave no processes and no files behind."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest


@pytest.fixture(autouse=True)
def _leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # NOTE: requested after `tmp_path`, which must not be inside it.
    # NOTE: short: the kernel limits socket paths to 107 bytes.
    scratch = Path(tempfile.mkdtemp(prefix="fs", dir="/tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    before = set(psutil.Process().children(recursive=True))
    try:
        yield
        assert set(psutil.Process().children(recursive=True)) - before == set()
        assert list(scratch.iterdir()) == []
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
