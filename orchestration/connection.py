"""From a process to the Ray of a deployment: which one, and by which token."""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from fly.errors import ConfigError, NotReady, Unauthenticated, describe
from orchestration.local_ray import TOKEN, set_import_path
from orchestration.sessions import find_session

_TOKEN_SOURCES = (TOKEN, "RAY_AUTH_TOKEN_PATH")
_TOKEN_FILE = Path("~/.ray/auth_token")


@contextlib.contextmanager
def connected(name: str, ray_address: str | None) -> Iterator[None]:
    """A connection to the Ray of a deployment for the time of the block.

    Args:
        name: Of the deployment.
        ray_address: host:port of Ray's GCS; without it RAY_ADDRESS, the local deployment of this name, or the
            Ray node that this machine is.

    Raises:
        ConfigError: Ray is not installed.
        NotReady: No Ray answers there.
        Unauthenticated: There is no token, or it is not that Ray's.
    """
    address = ray_address or os.environ.get("RAY_ADDRESS")
    if address is None and (session := find_session(name)) is not None:
        address, os.environ[TOKEN] = session.ray_address, session.token
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    _require_token()
    set_import_path()
    try:
        import ray
    except ImportError:
        raise ConfigError("Ray is not installed: install FlyServe with its extras engine and ray") from None
    try:
        ray.init(
            address or "auto",
            namespace=f"flyserve-{name}",
            logging_level=logging.CRITICAL,
            log_to_driver=False,
            configure_logging=False,
        )
    except Exception as error:
        raise _connection_error(address, error) from None
    try:
        yield
    finally:
        ray.shutdown()


def _require_token() -> None:
    is_known = any(os.environ.get(source) for source in _TOKEN_SOURCES) or _TOKEN_FILE.expanduser().is_file()
    if os.environ["RAY_AUTH_MODE"] == "token" and not is_known:
        raise Unauthenticated(
            f"{TOKEN} is not set: the Ray cluster's token, also as a file by RAY_AUTH_TOKEN_PATH or in"
            f" {_TOKEN_FILE}"
        )


def _connection_error(address: str | None, error: Exception) -> Exception:
    return NotReady(describe(error))
