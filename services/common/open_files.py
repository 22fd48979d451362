"""The limit of a process's open files, which include its connections."""

import resource
import sys
from contextlib import suppress


def raise_file_limit() -> None:
    """Raise the limit of open files as far as this process may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # NOTE: macOS reports no hard limit, but refuses to raise the soft one that far.
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_open_files() -> int:
    """Return the present limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
