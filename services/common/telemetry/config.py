"""Configuration of what a process tells of itself."""

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from services.common.config import Config


class TelemetryConfig(Config):
    """What a process tells of itself, and to whom.

    Attributes:
        metrics_port: Where Prometheus finds it, on the interface that the process serves; 0 takes a free
            port, told in the log; null tells nothing.
        metrics_ports: Number of ports from `metrics_port` on of which the first that is free is taken; the
            orchestration sets it.
        otlp_endpoint: Collector that takes traces by OTLP over gRPC, such as `http://127.0.0.1:4317`; null
            traces nothing.
        trace_ratio: Share of the requests that are traced, of those that no client has decided about by a
            `traceparent` of its own.
        log_format: Lines for people, or one JSON object per line.
        replica: Name of the process in all three; the orchestration sets it.
        waits_for_port: Where the metrics' port is taken, as by the process that this one is to replace, serve
            at once and tell them as soon as it is free; the orchestration sets it.
    """

    metrics_port: int | None = Field(None, ge=0, le=65_535)
    metrics_ports: int = Field(1, ge=1)
    otlp_endpoint: str | None = None
    trace_ratio: float = Field(0.1, ge=0, le=1)
    log_format: Literal["text", "json"] = "text"
    replica: str = ""
    waits_for_port: bool = False

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_a_url(cls, endpoint: str | None) -> str | None:
        if endpoint is not None:
            url = urlsplit(endpoint)
            if url.scheme not in ("http", "https") or not url.netloc:
                raise ValueError("must be http://host:port, or https://host:port with TLS")
        return endpoint
