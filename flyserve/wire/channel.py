"""Options of channels."""

from collections.abc import Sequence
from typing import Any

CHANNEL_OPTIONS: Sequence[tuple[str, Any]] = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
"""Options that all client channels share."""

NO_PROXY = ("grpc.enable_http_proxy", 0)
"""Option of a channel that does not ask the proxy of `http_proxy` or `https_proxy`, which gRPC would."""
