"""Find out what this process may use of its machine."""

import math
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from services.common.machine.cgroups import ROOT, allowed_cpus, cpu_quota, memory_limit
from services.common.machine.gpus import Gpu, find_gpus, has_cuda

_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Features of x86 and Arm processors that multiply bfloat16."""
_MATRIX_UNITS = "amx_tile"
"""Feature of x86 processors that multiply matrices of bfloat16 by instructions of their own."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The part of a machine that a process may use.

    Attributes:
        cores: CPUs, at least 1: of its affinity and CPU set, and of the time that its groups allow.
        memory_bytes: Memory that is available, within the limits of its groups; 0 if unknown.
        memory_limit: The limit of its groups that `memory_bytes` is, in bytes; None if there is none.
        shm_bytes: Free space of shared memory, /dev/shm; None where there is none.
        has_bfloat16: Its CPUs have instructions for bfloat16.
        has_matrix_units: Its CPUs have instructions for matrices of bfloat16.
        gpus: The GPUs that CUDA shows to it.
        has_cuda: torch can use them.
    """

    cores: int = 1
    memory_bytes: int = 0
    memory_limit: int | None = None
    shm_bytes: int | None = None
    has_bfloat16: bool = True
    has_matrix_units: bool = False
    gpus: tuple[Gpu, ...] = ()
    has_cuda: bool = False

    @property
    def usable_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that torch can use."""
        return self.gpus if self.has_cuda else ()


def find_machine(root: Path = ROOT, environment: Mapping[str, str] = os.environ) -> Machine:
    """Return what this process may use; `root` is the root of its file system."""
    limit = memory_limit(root)
    shm = root / "dev/shm"
    return Machine(
        cores=usable_cores(root),
        memory_bytes=_memory(root, limit),
        memory_limit=limit,
        shm_bytes=shutil.disk_usage(shm).free if shm.is_dir() else None,
        has_bfloat16=_has_bfloat16(root),
        has_matrix_units=has_matrix_units(root),
        gpus=find_gpus(environment),
        has_cuda=has_cuda(),
    )


def usable_cores(root: Path = ROOT, affinity: Collection[int] | None = None) -> int:
    """Return the CPUs that this process may use, at least 1."""
    numbers = [affinity_cpus() if affinity is None else len(affinity), cpu_quota(root)]
    if (allowed := allowed_cpus(root)) is not None:
        numbers.append(allowed)
    return max(1, math.floor(min(numbers)))


def affinity_cpus() -> int:
    """Return the CPUs of this process's affinity; where the system has none, as macOS, all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def has_matrix_units(root: Path = ROOT) -> bool:
    """Return True if the CPUs multiply matrices of bfloat16 by instructions of their own (AMX)."""
    return _MATRIX_UNITS in _cpu_features(root)


def _has_bfloat16(root: Path) -> bool:
    features = _cpu_features(root)
    return not features or not _BFLOAT16.isdisjoint(features)


def _cpu_features(root: Path) -> frozenset[str]:
    """Return the words that describe the CPUs; none where the system does not say."""
    try:
        return frozenset((root / "proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return frozenset()


def _memory(root: Path, limit: int | None) -> int:
    """Return the available bytes within the limit; 0 where the system does not say."""
    try:
        lines = (root / "proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return limit or 0
    sizes = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
    available = int(sizes["MemAvailable"][0]) << 10
    return available if limit is None else min(available, limit)
