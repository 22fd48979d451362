"""Processes whose parent has ended, such as the helpers of a killed replica: adopt and reap them."""

import ctypes
import os
import sys
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress

_PR_SET_CHILD_SUBREAPER = 36


@contextmanager
def adopted_orphans() -> Iterator[None]:
    """Become the parent of processes whose parent ends: of those that Ray's node starts while it is ended."""
    prctl = getattr(ctypes.CDLL(None), "prctl", lambda *_: None)  # Linux alone has it
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def children() -> Set[int]:
    """Return the ids of the child processes, adopted ones included."""
    import psutil

    return frozenset(child.pid for child in psutil.Process().children())


def reap_orphans(own: Set[int]) -> None:
    """Reap the children that have ended, so that none stays as a zombie; never one of `own`.

    NOTE: `own` are all that this process has started: the code that did so waits for their exit status.
    """
    if sys.platform != "linux":
        return
    with suppress(ChildProcessError):
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            for pid in children() - own:
                os.waitpid(pid, os.WNOHANG)
