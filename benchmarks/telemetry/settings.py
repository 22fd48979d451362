"""What is compared: a router's telemetry, from none to all."""

from collections.abc import Mapping
from typing import Any

OFF = "off"
METRICS: Mapping[str, Any] = {"metrics_port": 0}


def settings(endpoint: str) -> dict[str, dict[str, Any]]:
    """The section `telemetry` of each router; the first is what the others are compared with.

    Args:
        endpoint: Of the collector.
    """
    traced = {**METRICS, "otlp_endpoint": endpoint}
    return {
        OFF: {},
        "off, once more": {},
        "metrics": dict(METRICS),
        "metrics, a tenth of the requests traced (default)": traced,
        "metrics, every request traced": {**traced, "trace_ratio": 1.0},
    }
