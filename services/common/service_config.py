"""Configuration keys that every process with a gRPC server has."""

from pydantic import Field

from services.common.config import Config
from services.common.security.config import SecurityConfig
from services.common.telemetry.config import TelemetryConfig


class ProcessSection(Config):
    """Keys of every process: its end, its sockets, its telemetry."""

    grace_s: float = Field(10.0, ge=0)
    """Time in seconds that running streams have to finish when the process is stopped."""

    security: SecurityConfig = SecurityConfig()
    """TLS of the process's sockets."""

    telemetry: TelemetryConfig = TelemetryConfig()
    """Metrics, traces and logs of the process."""


class ServeSection(ProcessSection):
    """Keys of every replica."""

    address: str = "127.0.0.1:0"
    """host:port of the gRPC server; port 0 takes a free one."""
