"""From a process to the Ray of a deployment: which one, and by which token."""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from fly.errors import ConfigError, NotReady, describe
from orchestration.local.own_ray import TOKEN, set_import_path
from orchestration.local.running import find_session

_TOKEN_PATH, _TOKEN_FILE = "RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token"
_GET_ID = "/ray.rpc.NodeInfoGcsService/GetClusterId"
_ANSWER_S = 5.0


@contextlib.contextmanager
def connected(name: str, ray_address: str | None) -> Iterator[None]:
    """A connection to the Ray of a deployment for the time of the block.

    Args:
        name: Of the deployment.
        ray_address: host:port of Ray's GCS; without it RAY_ADDRESS, the local deployment of this name, or the
            Ray node that this machine is.

    Raises:
        ConfigError: Ray is not installed, or there is no token, or not that Ray's.
        NotReady: No Ray answers there.
    """
    address = ray_address or os.environ.get("RAY_ADDRESS")
    if address is None and (session := find_session(name)) is not None:
        address, os.environ[TOKEN] = session.ray_address, session.token
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    set_import_path()
    try:
        import ray
        from ray._private.services import get_ray_address_from_environment
    except ImportError:
        raise ConfigError("Ray is not installed: pip install 'flyserve[cluster]'") from None
    try:
        address = get_ray_address_from_environment(address or "auto", None)
    except ConnectionError:
        raise NotReady("no Ray runs on this machine: start a node here, or give --ray-address") from None
    _require_answer(address)
    try:
        ray.init(address, logging_level=logging.CRITICAL, log_to_driver=False)
    except Exception as error:
        raise NotReady(f"Ray at {address} cannot be used from this machine: {describe(error)}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _require_answer(address: str) -> None:
    """Asks Ray's GCS for its id: Ray itself would try for minutes, and not say why.

    Raises:
        ConfigError: There is no token, or it is another Ray's.
        NotReady: Nobody answers there.
    """
    token = _token()
    if not token and os.environ["RAY_AUTH_MODE"] == "token":
        raise ConfigError(
            f"{TOKEN}: is not set; it is the Ray cluster's token, which may also be in the file"
            f" {_TOKEN_PATH} or in {_TOKEN_FILE}"
        )
    with grpc.insecure_channel(address) as channel:
        ask: Any = channel.unary_unary(_GET_ID)
        try:
            ask(
                b"", timeout=_ANSWER_S, metadata=(("authorization", f"Bearer {token}"),), wait_for_ready=False
            )
        except grpc.RpcError as error:
            _judge(address, error)


def _judge(address: str, error: grpc.RpcError) -> None:
    match error.code():
        case grpc.StatusCode.UNAUTHENTICATED:
            raise ConfigError(
                f"{TOKEN}: is not the token of the Ray cluster at {address}: give that of its head"
            ) from None
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED:
            raise NotReady(f"no Ray answers at {address}") from None


def _token() -> str:
    """Where Ray looks for it."""
    if token := os.environ.get(TOKEN):
        return token
    file = Path(os.environ.get(_TOKEN_PATH, _TOKEN_FILE)).expanduser()
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
