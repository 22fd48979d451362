"""Paths that begin with `~`."""

import os
from pathlib import Path


def expanded(path: Path) -> Path:
    """Return a path with the user's home for `~`; of an unknown user it stays, and no such file exists.

    `Path.expanduser` raises RuntimeError for an unknown user.
    """
    return Path(os.path.expanduser(path))
