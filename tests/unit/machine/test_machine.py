"""Machines of every kind, as files of a false root and as the output of a false driver."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.machine.cgroups import allowed_cpus, cpu_quota, memory_limit
from services.common.machine.gpus import Gpu, find_gpus, parsed_gpus, visible_gpus
from services.common.machine.machine import find_machine, usable_cores

_GB = 1 << 30
_EIGHT_CORES = range(8)


def made(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


_V2 = {"proc/self/cgroup": "0::/pod/box\n"}
_V1 = {"proc/self/cgroup": "4:memory:/box\n3:cpuset:/box\n2:cpu,cpuacct:/box\n1:name=systemd:/\n"}
_QUOTA = {"cpu.cfs_quota_us": "250000\n", "cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        (_V2 | {"sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        (_V2 | {"sys/fs/cgroup/pod/cpu.max": "400000 100000\n"}, 4),
        (
            _V2 | {"sys/fs/cgroup/cpu.max": "150000 100000\n", "sys/fs/cgroup/pod/box/cpu.max": "max 100000"},
            1,
        ),
        (_V2 | {"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        (_V2 | {"sys/fs/cgroup/pod/box/cpuset.cpus.effective": "0-1,4\n"}, 3),
        (_V1 | {f"sys/fs/cgroup/cpu,cpuacct/box/{name}": text for name, text in _QUOTA.items()}, 2),
        (
            {"proc/self/cgroup": "2:cpu:/host/box\n"}  # in a container, the group itself is at the top
            | {f"sys/fs/cgroup/cpu/{name}": text for name, text in _QUOTA.items()},
            2,
        ),
        (_V1 | {"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n"}, 8),
        (_V1 | {"sys/fs/cgroup/cpuset/box/cpuset.cpus": "0,2-4\n"}, 4),
    ],
)
def test_cores(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    assert usable_cores(made(tmp_path, files), _EIGHT_CORES) == cores


def test_all_cores_count_where_the_system_has_no_affinity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS has none."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    assert usable_cores(tmp_path) == 10


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        (_V2 | {"sys/fs/cgroup/memory.max": "max\n"}, None),
        (
            _V2 | {"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/pod/memory.max": f"{2 * _GB}\n"},
            2 * _GB,
        ),
        (_V1 | {"sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{3 * _GB}\n"}, 3 * _GB),
        (_V1 | {"sys/fs/cgroup/memory/box/memory.limit_in_bytes": "9223372036854771712\n"}, None),
    ],
)
def test_memory(tmp_path: Path, files: dict[str, str], limit: int | None) -> None:
    host = {"proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n", "dev/shm/any": ""}
    machine = find_machine(made(tmp_path, files | host), {"CUDA_VISIBLE_DEVICES": ""})
    assert (machine.memory_limit, machine.memory_bytes) == (limit, limit or 8 * _GB)
    assert machine.shm_bytes and machine.gpus == ()


@pytest.mark.parametrize(
    ("cpuinfo", "has_it"),
    [("flags : fpu avx2 avx512_bf16\n", True), ("Features : fp bf16\n", True), ("flags : fpu avx2\n", False)],
)
def test_bfloat16(tmp_path: Path, cpuinfo: str, has_it: bool) -> None:
    machine = find_machine(made(tmp_path, {"proc/cpuinfo": cpuinfo}), {"CUDA_VISIBLE_DEVICES": ""})
    assert machine.has_bfloat16 is has_it and machine.memory_bytes == 0


_LISTED = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa1111)
  MIG 1g.5gb      Device  0: (UUID: MIG-one)
  MIG 3g.20gb     Device  1: (UUID: MIG-two)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa2222)
GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb3333)
"""
_SIZES = "GPU-aaaa1111, 40960\nGPU-aaaa2222, 40960\nGPU-bbbb3333, [N/A]\n"
_ONE = Gpu("MIG-one", 5 * _GB, "GPU-aaaa1111")
_TWO = Gpu("MIG-two", 20 * _GB, "GPU-aaaa1111")
_SECOND, _THIRD = Gpu("GPU-aaaa2222", 40 * _GB), Gpu("GPU-bbbb3333")


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, (_ONE, _SECOND, _THIRD)),
        ("2,1", (_THIRD, _SECOND)),
        (" 1 , 2 ", (_SECOND, _THIRD)),
        ("", ()),
        ("-1", ()),
        ("1,-1,2", (_SECOND,)),
        ("1,7", (_SECOND,)),
        ("1,1", ()),
        ("GPU-bbbb", (_THIRD,)),
        ("GPU-aaaa", ()),  # the beginning of two
        ("MIG-two,GPU-aaaa2222", (_TWO, _SECOND)),
        ("MIG-GPU-other", ()),
        ("NoDevFiles", ()),
    ],
)
def test_visible_gpus_are_those_of_cuda(visible: str | None, expected: tuple[Gpu, ...]) -> None:
    assert visible_gpus(parsed_gpus(_LISTED, _SIZES), visible) == expected


@given(st.text(max_size=40), st.text(max_size=200), st.text(max_size=80))
def test_no_text_of_a_driver_or_a_variable_fails(visible: str, listed: str, sizes: str) -> None:
    assert len(visible_gpus(parsed_gpus(listed, sizes), visible)) <= len(parsed_gpus(listed, sizes))
    visible_gpus(parsed_gpus(_LISTED, sizes), visible)


@pytest.mark.parametrize("script", ["exit 9", "echo 'NVIDIA-SMI has failed'", None])
def test_a_tool_without_a_driver_is_a_machine_without_gpus(tmp_path: Path, script: str | None) -> None:
    if script is not None:
        made(tmp_path, {"nvidia-smi": f"#!/bin/sh\n{script}\n"})
        (tmp_path / "nvidia-smi").chmod(0o755)
    assert find_gpus({"PATH": str(tmp_path)}) == ()


def test_gpus_are_found_by_the_drivers_tool(tmp_path: Path) -> None:
    listing = "GPU 0: NVIDIA H100 (UUID: GPU-1)"
    script = f'#!/bin/sh\nif [ "$1" = -L ]; then echo "{listing}"; else echo "GPU-1, 81559"; fi\n'
    made(tmp_path, {"nvidia-smi": script})
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert find_gpus({"PATH": str(tmp_path)}) == (Gpu("GPU-1", 81559 << 20),)


@pytest.mark.parametrize("read", [cpu_quota, memory_limit, allowed_cpus])
def test_broken_files_limit_nothing(tmp_path: Path, read: object) -> None:
    files = {"cpu.max": "\n", "memory.max": "much\n", "cpuset.cpus.effective": "\n"}
    root = made(tmp_path, _V2 | {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert callable(read) and read(root) in (None, float("inf"))
