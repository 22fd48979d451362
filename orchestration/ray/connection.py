"""Connect a process to the Ray cluster of a deployment: find its address and its token."""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from flyserve.core.errors import ConfigError, NotReady, describe
from flyserve.server import use_server
from flyserve.wire.channel import NO_PROXY
from orchestration.deployment.file import APPLICATION_ROOT
from orchestration.local.local_ray import TOKEN, LocalDeploymentInfo, find_local_deployment
from orchestration.local.ray_settings import loopback_as_address, own_signals, without_messages
from services.common.home import expanded

_TOKEN_PATH, _TOKEN_FILE = "RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token"
_GET_ID = "/ray.rpc.NodeInfoGcsService/GetClusterId"
_ANSWER_TIMEOUT_S = 5.0


@contextlib.contextmanager
def ray_connection(name: str | None, ray_address: str | None) -> Iterator[LocalDeploymentInfo | None]:
    """Connect to the Ray cluster of a deployment until the block ends; yield its local deployment, if any.

    `ray_address` is host:port of Ray's GCS. If absent: RAY_ADDRESS, else the local deployment of this name,
    or the only one, else the Ray node on this machine. The token of a local deployment is found as well.

    Raises:
        ConfigError: Ray is not installed, or its token is missing or wrong.
        NotReady: No Ray answers there.
    """
    address = ray_address or os.environ.get("RAY_ADDRESS")
    if (local := find_local_deployment(name, address)) is not None:
        address, os.environ[TOKEN] = local.ray_address, local.token
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    use_server()
    try:
        import ray
        from ray._private.services import get_ray_address_from_environment
    except ImportError:
        raise ConfigError("Ray is not installed: pip install 'flyserve[cluster]'") from None
    try:
        address = get_ray_address_from_environment(address or "auto", None)
    except ConnectionError:
        raise NotReady("no Ray runs on this machine: start a node here, or pass --ray-address") from None
    _require_answer(address)
    with without_messages():
        try:
            with loopback_as_address(), own_signals(), contextlib.chdir(APPLICATION_ROOT):
                ray.init(address, logging_level=logging.CRITICAL, log_to_driver=False)
        except Exception as error:
            raise NotReady(f"Ray at {address} cannot be used from this machine: {describe(error)}") from None
        try:
            yield local
        finally:
            ray.shutdown()


def _require_answer(address: str) -> None:
    """Request the id of Ray's GCS: Ray itself would retry for minutes without an error.

    Raises:
        ConfigError: The token is missing, or belongs to another Ray cluster.
        NotReady: Nothing answers there.
    """
    token = _token()
    if not token and os.environ["RAY_AUTH_MODE"] == "token":
        raise ConfigError(
            f"{TOKEN} is not set: set it to the Ray cluster's token, or put the token in the file"
            f" {_TOKEN_PATH} or in {_TOKEN_FILE}; for a Ray without authentication set RAY_AUTH_MODE=disabled"
        )
    metadata = (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(address, options=(NO_PROXY,)) as channel:
        get_id: Any = channel.unary_unary(_GET_ID)
        try:
            get_id(b"", timeout=_ANSWER_TIMEOUT_S, metadata=metadata)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                raise ConfigError(
                    f"{TOKEN} is not the token of the Ray cluster at {address}: use that of its head"
                ) from None
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise NotReady(f"no Ray answers at {address}") from None


def _token() -> str:
    """Return the token from the places where Ray looks for it; empty if there is none."""
    if token := os.environ.get(TOKEN):
        return token
    file = expanded(Path(os.environ.get(_TOKEN_PATH, _TOKEN_FILE)))
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
