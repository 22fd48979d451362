"""Configuration of a process's metrics, traces and logs."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, WithJsonSchema, field_validator

from services.common.config import Config

_Url = Annotated[str, WithJsonSchema({"type": "string", "pattern": "^https?://[^/]+"})]


class TelemetrySection(Config):
    """Metrics, traces and logs of a process."""

    metrics_port: int | None = Field(None, ge=0, le=65_535)
    """Port of the metrics for Prometheus, on the interface that the process serves. 0 takes a free port and
    logs it; null serves no metrics. In a deployment it is the router's port, and the tiers' ports follow at
    +100 (target), +200 (drafter) and +300 (sub-drafter)."""

    otlp_endpoint: _Url | None = None
    """Collector that receives traces by OTLP over gRPC, such as `http://127.0.0.1:4317`; null sends no
    traces."""

    trace_ratio: float = Field(0.1, ge=0, le=1)
    """Share of the requests that are traced, of those without a `traceparent` of the client."""

    log_format: Literal["text", "json"] = "text"
    """`text` writes lines for people, `json` one JSON object per line."""

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_a_url(cls, endpoint: str | None) -> str | None:
        if endpoint is not None:
            url = urlsplit(endpoint)
            if url.scheme not in ("http", "https") or not url.netloc:
                raise ValueError("must be http://host:port, or https://host:port with TLS")
        return endpoint


class TelemetryConfig(TelemetrySection):
    """Metrics, traces and logs of one process, with its name and the ports that it may take."""

    metrics_ports: int = Field(1, ge=1)
    """Number of ports from `metrics_port` on; the process takes the first free one."""

    replica: str = ""
    """Name of the process in metrics, traces and logs."""

    deployment: str = ""
    """Name of its deployment in metrics and traces."""

    waits_for_port: bool = False
    """If the port of the metrics is taken, as by the process that this one replaces: start without metrics,
    and serve them as soon as the port is free."""
