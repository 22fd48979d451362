"""A Ray of this process's own: started with token authentication, ended without a trace."""

import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from orchestration.deployment.file import APPLICATION_ROOT

if TYPE_CHECKING:
    import psutil

FOLDER_PREFIX = "flyserve-"
TOKEN = "RAY_AUTH_TOKEN"
_OBJECT_STORE_BYTES = 100 * 2**20
_EXIT_TIMEOUT_S = 5.0


def prepare_environment() -> None:
    """Sets what Ray reads from the environment, for this process and its children.

    NOTE: Ray reads the token once per process, when it is first imported: hence no import of Ray above,
    and no second token for a second deployment of the same process.
    """
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ.setdefault(TOKEN, secrets.token_hex(32))
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # NOTE: by default Ray has its workers give way, by 15 steps of niceness, to whatever else a node runs.
    os.environ.setdefault("RAY_worker_niceness", "0")
    set_import_path()


def set_import_path() -> None:
    """Has the processes that this one starts find the application's code."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(APPLICATION_ROOT) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(APPLICATION_ROOT), *filter(None, paths)])


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for sockets and logs that goes when the block ends."""
    # NOTE: Ray puts sockets there, whose paths the kernel limits to 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def local_ray(num_cpus: int, marks: Iterable[str], folder: Path, verbose: bool) -> Iterator[str]:
    """A Ray on this machine for the time of the block; the address of its GCS.

    Args:
        num_cpus: Logical CPUs that actors may ask for; more than the machine has is fine.
        marks: Resources that mark nodes: this machine is one for all of them.
        folder: For its sockets and logs.
        verbose: Print what the services log.
    """
    import ray

    before = _children()
    try:
        ray.init(
            address="local",
            num_cpus=num_cpus,
            resources=dict.fromkeys(marks, 1.0),
            object_store_memory=_OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=verbose,
            logging_level=logging.ERROR,
            _temp_dir=str(folder),
        )
    except SystemExit:
        # NOTE: while it starts, Ray has a handler of its own for SIGTERM.
        raise KeyboardInterrupt from None
    else:
        yield str(ray.get_runtime_context().gcs_address)
    finally:
        # NOTE: counted before Ray lets go of them: later they are nobody's children.
        started = [process for child in _children() - before for process in _with_descendants(child)]
        ray.shutdown()
        _end(started)


def _children() -> "set[psutil.Process]":
    # Ray brings psutil along, for who has imported Ray.
    import psutil

    return set(psutil.Process().children())


def _with_descendants(process: "psutil.Process") -> "list[psutil.Process]":
    import psutil

    try:
        return [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return []


def _end(processes: "list[psutil.Process]") -> None:
    """Ends what Ray has left: after an orderly stop nothing, after an interrupted start some."""
    import psutil

    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                end(process)
        _, processes = psutil.wait_procs(processes, timeout=_EXIT_TIMEOUT_S)
