"""How other processes of this user find a deployment that `flyserve up` runs on this machine."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from fly.errors import ConfigError
from orchestration.local.own_ray import FOLDER_PREFIX, TOKEN

_SESSION = "session.json"


@dataclass(frozen=True, slots=True)
class Session:
    """How other processes of this user reach a deployment that `flyserve up` runs.

    Attributes:
        name: Of the deployment.
        ray_address: host:port of Ray's GCS.
        token: Of Ray.
        pid: Of the process that runs it.
    """

    name: str
    ray_address: str
    token: str
    pid: int


def write_session(folder: Path, name: str, ray_address: str) -> None:
    """Tells of a deployment of this process in its temporary folder, which nobody else can read."""
    session = Session(name, ray_address, os.environ[TOKEN], os.getpid())
    (folder / _SESSION).write_text(json.dumps(asdict(session)), encoding="utf-8")


def find_session(name: str) -> Session | None:
    """The deployment of this name that a process of this user runs on this machine; None where there is none.

    Raises:
        ConfigError: There are several.
    """
    found = [session for session in _sessions() if session.name == name]
    if len(found) > 1:
        pids = ", ".join(str(session.pid) for session in found)
        raise ConfigError(
            f"--name: {len(found)} local deployments are called {name} (processes {pids}):"
            " give them names of their own (key name), or end all but one"
        )
    return found[0] if found else None


def _sessions() -> Iterator[Session]:
    for file in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*/{_SESSION}"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            if file.parent.stat().st_uid != os.getuid():
                continue
            session = Session(**json.loads(file.read_text(encoding="utf-8")))
            os.kill(session.pid, 0)
            yield session
