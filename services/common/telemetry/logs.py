"""The log of a process: lines for people or for machines, each with the request that it is about.

The log names requests, replicas, figures and faults; never a prompt, a token or a text.
"""

import faulthandler
import json
import logging
import time
from contextvars import ContextVar
from typing import Any

from services.common.telemetry.config import TelemetryConfig

FIGURES = "figures"
"""Attribute of a record that maps names to figures: `extra={FIGURES: {...}}`."""

_STDERR = 2
_SDK_INTERVAL_S = 60.0
"""Time between two lines of OpenTelemetry's SDK, which logs every failed export and every dropped span."""

_request_id: ContextVar[str] = ContextVar("request_id", default="")


def name_request(request_id: str) -> None:
    """Set the request of this task, and of every task that it creates from now on."""
    _request_id.set(request_id)


class _Formatter(logging.Formatter):
    """The fields that both formats share: the process and the record's request."""

    def __init__(self, role: str, replica: str) -> None:
        super().__init__()
        self._process = {"role": role, **({"replica": replica} if replica else {})}

    def context(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the role, the replica, the request's id and the figures of a record."""
        request_id = _request_id.get()
        named = {"request_id": request_id} if request_id else {}
        return {**self._process, **named, **getattr(record, FIGURES, {})}

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{moment}.{int(record.msecs):03d}Z"


class TextFormatter(_Formatter):
    """One line: time, level, logger, message, then the context as `key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        context = " ".join(f"{key}={_bare(value)}" for key, value in self.context(record).items())
        origin = f"{self.formatTime(record)} {record.levelname} {record.name}"
        line = f"{origin}: {record.getMessage()} [{context}]"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(_Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self.context(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class RateLimit(logging.Filter):
    """Passes at most one record per interval from the loggers below `name`, and every record of others."""

    def __init__(self, name: str, interval_s: float) -> None:
        super().__init__(name)
        self._interval_s = interval_s
        self._next_at = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if not super().filter(record):
            return True
        if record.created < self._next_at:
            return False
        self._next_at = record.created + self._interval_s
        return True


def formatter(config: TelemetryConfig, role: str) -> logging.Formatter:
    """Return the formatter that the configuration names."""
    return (JsonFormatter if config.log_format == "json" else TextFormatter)(role, config.replica)


def configure_logging(config: TelemetryConfig, role: str) -> None:
    """Send everything from level INFO on to stderr, and the stacks of a crash; replace earlier settings."""
    if not faulthandler.is_enabled():
        faulthandler.enable(_STDERR)
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(config, role))
    handler.addFilter(RateLimit("opentelemetry", _SDK_INTERVAL_S))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _bare(value: Any) -> str:
    """Return a value on one line: a name that a client chose may contain anything."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value).encode("unicode_escape").decode("ascii")
