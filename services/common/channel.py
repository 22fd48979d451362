"""Client channels to services: credentials, keepalive, reconnect behaviour."""

from collections.abc import Sequence
from typing import Any

import grpc

OPTIONS: Sequence[tuple[str, Any]] = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A channel of our own per endpoint: closing one must not disturb another's connection.
    ("grpc.use_local_subchannel_pool", 1),
)


def open_channel(address: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
    """A channel to `host:port`; plaintext without credentials. The caller closes it."""
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=OPTIONS)
    return grpc.aio.secure_channel(address, credentials, options=OPTIONS)
