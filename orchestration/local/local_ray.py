"""A local Ray cluster of this process, removed without a trace at its end; other processes discover it."""

import errno
import logging
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import chdir, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from flyserve.core.errors import ConfigError, NotReady, describe
from flyserve.server import use_server
from flyserve.signals import stop_signals
from flyserve.whole_file import write_whole
from orchestration.deployment.file import APPLICATION_ROOT
from orchestration.local.folder import FOLDER_PREFIX
from orchestration.local.orphans import adopted_orphans
from orchestration.local.ray_settings import loopback_as_address, own_signals, without_messages
from services.common.machine.machine import Machine

if TYPE_CHECKING:
    import psutil

logger = logging.getLogger(__name__)

TOKEN = "RAY_AUTH_TOKEN"
_OBJECT_STORE_BYTES = 100 * 2**20
_EXIT_TIMEOUT_S = 5.0
_END_ROUNDS = 3
"""Times to end processes: those that are left, and those that one of them has just started."""


def prepare_environment() -> None:
    """Set the environment variables that Ray reads in this process and its children.

    NOTE: Ray reads the token once per process, at its first import: hence Ray is not imported at the top of
    this module, and a second deployment of the same process has the same token.
    """
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ.setdefault(TOKEN, secrets.token_hex(32))
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # NOTE: by default Ray lowers the priority of its workers by 15 steps of niceness.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # NOTE: by default a node ends itself if its agent has not started within 30 s, as on a busy machine.
    os.environ.setdefault("RAY_agent_register_timeout_ms", "600000")
    use_server()


@contextmanager
def local_ray(
    num_cpus: int,
    marks: Iterable[str],
    folder: Path,
    verbose: bool,
    timeout_s: float,
    num_gpus: int | None = None,
) -> Iterator[str]:
    """Run a Ray cluster on this machine until the block ends; yield host:port of its GCS.

    The logical CPUs `num_cpus` may exceed the machine's; without `num_gpus`, Ray counts the GPUs. It offers
    all `marks`, resources that mark nodes; `folder` holds sockets and logs, and `verbose` prints what the
    services and Ray log. Every port of it is on loopback.

    Raises:
        NotReady: Ray has not started within `timeout_s`; it is started again until then.
    """
    import psutil
    import ray

    this = psutil.Process()
    before = set(this.children())

    def started() -> list[psutil.Process]:
        return [process for child in set(this.children()) - before for process in _with_descendants(child)]

    def end() -> None:
        # NOTE: listed before the shutdown: after it they are no longer children of this process.
        remaining = started()
        ray.shutdown()
        for _ in range(_END_ROUNDS):
            _end_remaining(remaining)
            remaining = started()

    def kill() -> None:
        for _ in range(_END_ROUNDS):
            for process in started():
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    options = {
        "address": "local",
        "num_cpus": num_cpus,
        "num_gpus": num_gpus,
        "resources": dict.fromkeys(marks, 1.0),
        "object_store_memory": _OBJECT_STORE_BYTES,
        "include_dashboard": False,
        "log_to_driver": verbose,
        "logging_level": logging.ERROR,
        "_temp_dir": str(folder),
    }
    with adopted_orphans(), stop_signals.with_last_resort(kill):
        try:
            with nullcontext() if verbose else without_messages():
                with loopback_as_address():
                    _start_ray(options, end, timeout_s)
                yield str(ray.get_runtime_context().gcs_address)
        finally:
            end()


def _start_ray(options: Mapping[str, Any], end: Callable[[], None], timeout_s: float) -> None:
    """Start Ray; again if a start fails, as on a machine that is busy for a while, until `timeout_s` is over.

    NOTE: a start fails by itself after 30 s to a minute, limits that Ray has no parameters for.
    """
    import ray

    begin = time.monotonic()
    while True:
        try:
            # Its processes also search the folder in which Ray is started, and that first.
            with own_signals(), chdir(APPLICATION_ROOT):
                ray.init(**options)
        except Exception as error:
            end()
            waited_s = time.monotonic() - begin
            if _is_disk_full(error) or waited_s >= timeout_s:
                raise NotReady(_start_fault(error, waited_s)) from None
            logger.warning("Ray did not start, and is started again: %s", describe(error))
        else:
            return


def _is_disk_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.ENOSPC


def _start_fault(error: Exception, waited_s: float) -> str:
    """Return one line that says why Ray did not start, and what to do about it."""
    if _is_disk_full(error):
        return f"Ray did not start: no space is left in {tempfile.gettempdir()}; free some, or set TMPDIR"
    return (
        f"Ray did not start within {waited_s:.0f} s: {describe(error)}; wait until the machine is less busy,"
        f" allow more time with --startup-timeout-s, and check that {tempfile.gettempdir()} has free space"
    )


def _with_descendants(process: "psutil.Process") -> "list[psutil.Process]":
    import psutil

    try:
        return [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return []


def _end_remaining(processes: "list[psutil.Process]") -> None:
    """End the processes that Ray has left running, such as after an interrupted start."""
    import psutil

    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                end(process)
        _, processes = psutil.wait_procs(processes, timeout=_EXIT_TIMEOUT_S)


_FILE = "deployment.json"


class LocalDeploymentInfo(BaseModel, frozen=True):
    """The information that other processes need to connect to a local deployment.

    Attributes:
        ray_address: host:port of Ray's GCS; empty for a single process, which has none.
        address: host:port of the gRPC API; empty until it serves.
        pid: Id of the process that runs the deployment.
        started: Time at which that process started, since another one may have its id by now; empty where the
            system does not say, and in the file of an earlier version.
        machine: The machine as it was before the deployment started, for which it was settled; None if it
            was not.
    """

    name: str
    ray_address: str
    address: str = ""
    token: str
    pid: int
    started: str = ""
    machine: Machine | None = None


def publish_local_deployment(
    folder: Path, name: str, ray_address: str, address: str = "", machine: Machine | None = None
) -> None:
    """Write the info of this process's deployment to its temporary folder, which no other user can read."""
    token = os.environ.get(TOKEN, "")
    pid = os.getpid()
    info = LocalDeploymentInfo(
        name=name,
        ray_address=ray_address,
        address=address,
        token=token,
        pid=pid,
        started=_start_time(pid),
        machine=machine,
    )
    write_whole(folder / _FILE, info.model_dump_json())


def find_local_deployment(name: str | None, ray_address: str | None = None) -> LocalDeploymentInfo | None:
    """Return the deployment of this name that this user runs on this machine; None if there is none.

    With `ray_address`, return the one of that Ray; with neither, the only one.

    Raises:
        ConfigError: There are several.
    """
    running = [info for info in running_deployments() if info.ray_address]
    if ray_address is not None:
        return next((info for info in running if info.ray_address == ray_address), None)
    found = [info for info in running if name in (None, info.name)]
    if len(found) > 1:
        listed = ", ".join(f"{info.name} (process {info.pid}, Ray {info.ray_address})" for info in found)
        raise ConfigError(
            f"--name: {len(found)} local deployments run, {listed}: choose one by its name,"
            " or by its Ray with --ray-address"
        )
    return found[0] if found else None


def require_controller(name: str | None) -> None:
    """Reject a name that no local deployment has while others run, and one of a single process.

    Raises:
        ConfigError: The message names those that run, or the command that a single process answers.
    """
    running = list(running_deployments())
    found = [info for info in running if name in (None, info.name)]
    if running and not found:
        raise ConfigError(
            f"--name: is {name}, but this machine runs {', '.join(sorted(info.name for info in running))}:"
            " name one of these, or give --ray-address for a cluster"
        )
    if found and not any(info.ray_address for info in found):
        raise ConfigError(
            f"{found[0].name} is a single process ({found[0].pid}), which has no controller: flyserve info"
            f" --address {found[0].address} shows it; start it without --single-process to scale it"
        )


def running_deployments() -> Iterator[LocalDeploymentInfo]:
    """Yield the deployments that this user runs on this machine."""
    for file in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*/{_FILE}"):
        with suppress(OSError, ValueError):
            if file.parent.stat().st_uid == os.getuid():
                info = LocalDeploymentInfo.model_validate_json(file.read_bytes())
                os.kill(info.pid, 0)
                if info.started in ("", _start_time(info.pid)):
                    yield info


def _start_time(pid: int) -> str:
    """Return when a process started, in the kernel's clock ticks; empty where there is no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]
