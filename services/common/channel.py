"""Client channels to services: credentials, keepalive, reconnect behaviour."""

from collections.abc import Sequence
from typing import Any

import grpc

from services.common.security.identity import PeerTls

OPTIONS: Sequence[tuple[str, Any]] = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Each endpoint has its own connection: closing one channel must not affect another.
    ("grpc.use_local_subchannel_pool", 1),
)


def open_channel(address: str, tls: PeerTls | None = None) -> grpc.aio.Channel:
    """Open a channel to `host:port`, in plaintext without `tls`. The caller closes it.

    NOTE: a channel keeps the certificate that it was opened with: a caller that keeps one for long must open
    another after the files have changed.
    """
    if tls is None:
        return grpc.aio.insecure_channel(address, options=OPTIONS)
    named = ("grpc.ssl_target_name_override", tls.name)
    return grpc.aio.secure_channel(address, tls.credentials, options=(*OPTIONS, named))
