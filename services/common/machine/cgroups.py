"""Limits of the control groups of this process, of version 1 and 2: containers see the host's numbers."""

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path("/")
_GROUPS = "sys/fs/cgroup"
_LEAST_UNLIMITED = 1 << 60
"""Bytes from which on a limit of version 1 stands for none."""


def cpu_quota(root: Path = ROOT) -> float:
    """Return the CPUs' worth of time that this process may take; infinite without a limit."""
    quotas = [math.inf]
    for folder in _folders(root, "cpu"):
        # Version 2 has both numbers in one file, version 1 each in its own.
        quota, period = (
            *_words(folder / "cpu.max"),
            *_words(folder / "cpu.cfs_quota_us"),
            *_words(folder / "cpu.cfs_period_us"),
            *("", ""),
        )[:2]
        if quota.isdecimal() and period.isdecimal() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas)


def memory_limit(root: Path = ROOT) -> int | None:
    """Return the bytes of memory that this process may take; None without a limit."""
    found = [
        int(word)
        for folder in _folders(root, "memory")
        for file in ("memory.max", "memory.limit_in_bytes")
        for word in _words(folder / file)
        if word.isdecimal()
    ]
    return min((limit for limit in found if limit < _LEAST_UNLIMITED), default=None)


def allowed_cpus(root: Path = ROOT) -> int | None:
    """Return the number of CPUs in the set of this process; None if no set limits them."""
    sets = [
        _count(words[0])
        for folder in _folders(root, "cpuset")
        for file in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
        if (words := _words(folder / file))
    ]
    return min(sets, default=None)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the groups of a controller, this process's own first and then all above it.

    In a container, the group's own path may not exist: its files are then at the top.
    """
    base = root / _GROUPS
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        for top in (base / controller, base / controllers) if controllers else (base, base / "unified"):
            group = top / path.strip("/")
            while group != top and top in group.parents:
                yield group
                group = group.parent
            yield top


def _count(listed: str) -> int:
    """Return the number of CPUs in a list such as `0-3,8`."""
    ends = (part.partition("-") for part in listed.split(","))
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)


def _words(file: Path) -> list[str]:
    return _text(file).split()


def _text(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(encoding="utf-8")
    return ""
