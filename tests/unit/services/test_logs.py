"""The format of log lines, and the texts that none may contain."""

import ast
import json
import logging
import sys
from contextvars import copy_context
from pathlib import Path

import pytest

from services.common.telemetry.config import TelemetryConfig
from services.common.telemetry.logs import FIGURES, RateLimit, formatter, name_request

ROOT = Path(__file__).parents[3]
TEXTS = {
    "prompt",
    "prompt_ids",
    "prompt_token_ids",
    "text",
    "texts",
    "tokens",
    "token",
    "ids",
    "pieces",
    "piece",
}
"""Names of prompts, responses and their tokens, wherever they occur in the code."""


def line(log_format: str, message: str = "%d rounds", *arguments: object, **about: object) -> str:
    record = logging.LogRecord("router.x", logging.INFO, __file__, 1, message, arguments or (3,), None)
    record.created, record.msecs = 0.0, 250.0
    for key, value in about.items():
        setattr(record, key, value)
    config = TelemetryConfig(log_format=log_format, replica="router-0")  # type: ignore[arg-type]
    return formatter(config, "router").format(record)


def test_a_line_for_people() -> None:
    logged = line("text", **{FIGURES: {"mode": "fly", "seconds": 0.123456789}})
    assert logged == (
        "1970-01-01T00:00:00.250Z INFO router.x: 3 rounds"
        " [role=router replica=router-0 mode=fly seconds=0.123457]"
    )


def test_a_line_for_machines() -> None:
    logged = json.loads(line("json", **{FIGURES: {"mode": "fly"}}))
    expected = {"time": "1970-01-01T00:00:00.250Z", "level": "info", "logger": "router.x"}
    expected |= {"message": "3 rounds", "role": "router", "replica": "router-0", "mode": "fly"}
    assert logged == expected


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_request_may_be_named_with_anything_and_stays_on_its_line(log_format: str) -> None:
    def named() -> str:
        name_request("a\nb [role=root] 你")
        return line(log_format)

    logged = copy_context().run(named)
    assert "\n" not in logged
    assert line(log_format) != logged, "the name belongs to its own task"
    if log_format == "json":
        assert json.loads(logged)["request_id"] == "a\nb [role=root] 你"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_an_error_is_logged_with_its_traceback(log_format: str) -> None:
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        assert "RuntimeError: broken" in line(log_format, exc_info=sys.exc_info())


def test_an_exporter_that_fails_is_logged_once_in_a_while() -> None:
    limit = RateLimit("opentelemetry", 60.0)

    def passes(name: str, at_s: float) -> bool:
        record = logging.LogRecord(name, logging.ERROR, __file__, 1, "failed", (), None)
        record.created = at_s
        return bool(limit.filter(record))

    assert [passes("opentelemetry.sdk", at_s) for at_s in (0.0, 1.0, 59.0, 60.0, 61.0)] == [
        *(True, False, False, True, False)
    ]
    assert not passes("opentelemetry.exporter", 62.0)
    assert all(passes("router.service", 62.0) for _ in range(3))


def test_no_call_of_a_logger_has_a_text_or_a_token() -> None:
    """A change that logs a prompt, a token or a text has to change this test."""
    folders = ("router", "services", "orchestration")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    calls = [(file, call) for file in files for call in logger_calls(file)]
    assert len(calls) > 10
    for file, call in calls:
        names = {node.id for part in call.args for node in ast.walk(part) if isinstance(node, ast.Name)}
        names |= {
            node.attr for part in call.args for node in ast.walk(part) if isinstance(node, ast.Attribute)
        }
        assert not names & TEXTS, f"{file}:{call.lineno} logs {names & TEXTS}"


def logger_calls(file: Path) -> list[ast.Call]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in calls if ast.unparse(call.func).startswith(("logger.", "logging.info"))]
