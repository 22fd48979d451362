"""The log of a process: lines for people or for machines, with the request that each is about.

What is logged names requests, replicas, figures and faults; never a prompt, a token or a text.
"""

import json
import logging
import time
from contextvars import ContextVar
from typing import Any

from services.common.telemetry.config import TelemetryConfig

FIGURES = "figures"
"""Attribute of a record that holds a mapping of names to figures: `extra={FIGURES: {...}}`."""

_request_id: ContextVar[str] = ContextVar("request_id", default="")


def name_request(request_id: str) -> None:
    """Says which request this task, and every task that it begins, works for from now on."""
    _request_id.set(request_id)


class _Formatter(logging.Formatter):
    """What both formats tell of the process, and of the record's request."""

    def __init__(self, role: str, replica: str) -> None:
        super().__init__()
        self._process = {"role": role, **({"replica": replica} if replica else {})}

    def about(self, record: logging.LogRecord) -> dict[str, Any]:
        """Who says it, for which request, with which figures."""
        request_id = _request_id.get()
        named = {"request_id": request_id} if request_id else {}
        return {**self._process, **named, **getattr(record, FIGURES, {})}

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{moment}.{int(record.msecs):03d}Z"


class TextFormatter(_Formatter):
    """One line: time, level, logger, message, then what it is about as `key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        about = " ".join(f"{key}={_bare(value)}" for key, value in self.about(record).items())
        line = f"{self.formatTime(record)} {record.levelname} {record.name}: {record.getMessage()} [{about}]"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(_Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self.about(record),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)


def formatter(config: TelemetryConfig, role: str) -> logging.Formatter:
    """The one that a configuration asks for."""
    return (JsonFormatter if config.log_format == "json" else TextFormatter)(role, config.replica)


def configure_logging(config: TelemetryConfig, role: str) -> None:
    """Sends everything from INFO on to stderr; replaces what was configured before."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(config, role))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _bare(value: Any) -> str:
    """A value on one line: what a client has named may hold anything."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value).encode("unicode_escape").decode("ascii")
