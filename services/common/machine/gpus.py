"""The GPUs that a process may use, by the driver's own tool; imports no torch, and starts no CUDA."""

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_TOOL = "nvidia-smi"
_TIME_LIMIT_S = 20.0
"""A driver that hangs does not hang the command."""
_DEVICE = re.compile(r"(?P<kind>GPU|  MIG)\b(?P<name>.*?)\(UUID: (?P<uuid>[^)\s]+)\)")
_MIG_SIZE = re.compile(r"\.(\d+)gb")
_CUDA_OF_TORCH = re.compile(r"^cuda\b.*=\s*['\"]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or an instance of one that is partitioned (MIG).

    Attributes:
        uuid: Its identity, such as `GPU-4cf8db2d-...`.
        memory_bytes: Its memory; 0 if unknown.
        parent: Identity of the GPU that it is an instance of; empty for a whole one.
    """

    uuid: str
    memory_bytes: int = 0
    parent: str = ""


def find_gpus(environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return the GPUs that a process with this environment may use, in the order of the PCI bus.

    NOTE: CUDA numbers them so, too, in every process of an engine, unless `CUDA_DEVICE_ORDER` is set.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and not visible.strip():
        return ()
    tool = shutil.which(_TOOL, path=environment.get("PATH"))
    if tool is None:
        return ()
    sizes = _output(tool, "--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits")
    return visible_gpus(parsed_gpus(_output(tool, "-L"), sizes), visible)


def parsed_gpus(listed: str, sizes: str) -> tuple[Gpu, ...]:
    """Return all GPUs and their instances, from what the driver's tool prints: its list, and the sizes."""
    mebibytes = dict(line.replace(" ", "").split(",", 1) for line in sizes.splitlines() if "," in line)
    found: list[Gpu] = []
    parent = ""
    for line in listed.splitlines():
        if (match := _DEVICE.match(line)) is None:
            continue
        uuid = match["uuid"]
        if match["kind"] == "GPU":
            parent, size = uuid, mebibytes.get(uuid, "")
            found.append(Gpu(uuid, int(size) << 20 if size.isdecimal() else 0))
        else:
            profile = _MIG_SIZE.search(match["name"])
            found.append(Gpu(uuid, int(profile[1]) << 30 if profile else 0, parent))
    return tuple(found)


def visible_gpus(gpus: tuple[Gpu, ...], visible: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA shows with `CUDA_VISIBLE_DEVICES` set to `visible`; None: it is not set.

    The list ends at its first entry that is no GPU, such as -1. With an entry that is listed twice, CUDA
    shows none. A GPU that is partitioned stands for its first instance.
    """
    partitioned = {gpu.parent for gpu in gpus}
    whole = [gpu for gpu in gpus if not gpu.parent]
    if visible is None:
        chosen = whole
    else:
        chosen = []
        for entry in map(str.strip, visible.split(",")):
            if (gpu := _named(entry, whole, gpus)) is None:
                break
            if gpu in chosen:
                return ()
            chosen.append(gpu)
    return tuple(
        next(each for each in gpus if each.parent == gpu.uuid) if gpu.uuid in partitioned else gpu
        for gpu in chosen
    )


def has_cuda() -> bool:
    """Return False if torch is missing or is a build for CPUs alone; does not import it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    version = Path(spec.origin).with_name("version.py")
    return version.is_file() and _CUDA_OF_TORCH.search(version.read_text(encoding="utf-8")) is not None


def _named(entry: str, whole: list[Gpu], gpus: tuple[Gpu, ...]) -> Gpu | None:
    """Return the GPU of an index or of the beginning of an identity, which only one GPU has."""
    if entry.isdecimal():
        return whole[int(entry)] if int(entry) < len(whole) else None
    found = [gpu for gpu in gpus if entry.startswith(("GPU-", "MIG-")) and gpu.uuid.startswith(entry)]
    return found[0] if len(found) == 1 else None


def _output(*command: str) -> str:
    """Return what a command prints; nothing if it fails, as where there is a tool but no driver."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIME_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
