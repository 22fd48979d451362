"""The temporary folder of a local deployment, by which other commands find it."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from flyserve.core.errors import NotReady
from flyserve.signals import stop_signals

FOLDER_PREFIX = "flyserve-"
_NEEDED_BYTES = 256 * 2**20
"""Free space for sockets and logs: on a full disk Ray waits for minutes before it fails."""


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Create a folder for sockets and logs of Ray, and delete it at the end of the block.

    Raises:
        NotReady: There is too little free space.
    """
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < _NEEDED_BYTES:
        raise NotReady(
            f"{tempfile.gettempdir()} has {free >> 20} MB of free space, Ray needs {_NEEDED_BYTES >> 20} MB:"
            " free some, or set TMPDIR to another folder"
        )
    with own_folder() as folder:
        yield folder


@contextmanager
def own_folder() -> Iterator[Path]:
    """Create a folder by which other commands find this process, and delete it at the end of the block."""
    # NOTE: Ray puts sockets there, whose paths the kernel limits to 107 bytes.
    with (
        tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, ignore_cleanup_errors=True) as folder,
        stop_signals.with_last_resort(partial(shutil.rmtree, folder, ignore_errors=True)),
        _locked(folder),
    ):
        yield Path(folder)


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Hold a shared lock on a folder while the block runs.

    NOTE: systemd-tmpfiles deletes what has lain in /tmp for ten days, but nothing in a folder that is locked.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)
