"""Discovery of the local deployments that `flyserve up` runs, for other processes of the same user."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from fly.errors import ConfigError
from orchestration.local.local_ray import FOLDER_PREFIX, TOKEN

_FILE = "deployment.json"


@dataclass(frozen=True, slots=True)
class LocalDeploymentInfo:
    """The information that other processes need to connect to a local deployment.

    Attributes:
        name: Name of the deployment.
        ray_address: host:port of Ray's GCS.
        token: Ray's authentication token.
        pid: Id of the process that runs the deployment.
    """

    name: str
    ray_address: str
    token: str
    pid: int


def publish_local_deployment(folder: Path, name: str, ray_address: str) -> None:
    """Write the info of this process's deployment to its temporary folder, which no other user can read."""
    info = LocalDeploymentInfo(name=name, ray_address=ray_address, token=os.environ[TOKEN], pid=os.getpid())
    (folder / _FILE).write_text(json.dumps(asdict(info)), encoding="utf-8")


def find_local_deployment(name: str) -> LocalDeploymentInfo | None:
    """Return the deployment of this name that this user runs on this machine; None if there is none.

    Raises:
        ConfigError: There are several.
    """
    found = [info for info in _running_deployments() if info.name == name]
    if len(found) > 1:
        pids = ", ".join(str(info.pid) for info in found)
        raise ConfigError(
            f"--name: {len(found)} local deployments have the name {name} (processes {pids}):"
            " give each its own name (key name), or end all but one"
        )
    return found[0] if found else None


def _running_deployments() -> Iterator[LocalDeploymentInfo]:
    for file in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*/{_FILE}"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            if file.parent.stat().st_uid != os.getuid():
                continue
            info = LocalDeploymentInfo(**json.loads(file.read_text(encoding="utf-8")))
            os.kill(info.pid, 0)
            yield info
