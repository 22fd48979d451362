"""The machine that a benchmark runs on, and the versions that it runs."""

import os
import platform
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from flyserve.core.version import VERSION
from services.common.machine.machine import affinity_cpus

_ROOT = Path(__file__).parent
_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16")
THREADS = 1
"""Threads of torch in every process of a benchmark."""
_PACKAGES = ("torch", "transformers", "grpcio", "ray")


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts that a reader needs to compare figures.

    Attributes:
        cores: Logical cores that this process may use.
        flags: Relevant CPU instructions, present or not.
        threads: Threads of torch, in every process; None if the page says how many.
        load: Load average over one minute when the benchmark began: the work of other processes.
        commit: Commit that is measured, with "-dirty" if files differ from it.
        date: Date of the run.
    """

    cpu: str
    cores: int
    flags: dict[str, bool]
    threads: int | None
    load: float
    versions: dict[str, str]
    commit: str
    date: str

    def describe(self) -> str:
        """Return one sentence for the report."""
        present = ", ".join(flag for flag, has in self.flags.items() if has) or "none"
        absent = ", ".join(flag for flag, has in self.flags.items() if not has) or "none"
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        threads = "" if self.threads is None else f" {self.threads} torch thread in every process,"
        return (
            f"commit {self.commit}, {self.date}, on {self.cpu},"
            f" {self.cores} cores ({present}; not: {absent}),{threads}"
            f" load {self.load:.1f} before. {versions}."
        )


def this_machine() -> Machine:
    """Return what Linux reports; if it reports no CPU name, the architecture stands for it."""
    info = _cpu_info(Path("/proc/cpuinfo"))
    flags = set(info.get("flags", "").split())
    versions = {"FlyServe": VERSION, "Python": platform.python_version()}
    return Machine(
        cpu=info.get("model name", platform.machine()),
        cores=affinity_cpus(),
        flags={flag: flag in flags for flag in _FLAGS},
        threads=THREADS,
        load=os.getloadavg()[0],
        versions=versions | _installed(_PACKAGES),
        commit=_commit(),
        date=datetime.now(UTC).date().isoformat(),
    )


def _installed(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those that are here: a machine that runs the engine alone has no Ray."""
    found: dict[str, str] = {}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _commit() -> str:
    """Return the short hash of the commit in this folder, or "unknown" outside a repository."""
    command = ("git", "describe", "--always", "--dirty", "--exclude", "*")
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _cpu_info(path: Path) -> dict[str, str]:
    """Return the entries of the first core."""
    if not path.is_file():
        return {}
    first = path.read_text(encoding="utf-8").split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
