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
    # A channel of our own per endpoint: closing one must not disturb another's connection.
    ("grpc.use_local_subchannel_pool", 1),
)


def open_channel(address: str, tls: PeerTls | None = None) -> grpc.aio.Channel:
    """A channel to `host:port`; plaintext without `tls`. The caller closes it.

    NOTE: a channel keeps the certificate that it was opened with: whoever holds one for long opens another
    when the files have changed.
    """
    if tls is None:
        return grpc.aio.insecure_channel(address, options=OPTIONS)
    named = ("grpc.ssl_target_name_override", tls.name)
    return grpc.aio.secure_channel(address, tls.credentials, options=(*OPTIONS, named))
