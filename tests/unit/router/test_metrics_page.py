"""`/metrics`: many clients cost no more than one, and get one of two formats."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Metric
from starlette.requests import Request

from router.http import metrics_page
from router.http.metrics_page import MetricsPage


class Encodings:
    """A collector that counts how often its metrics are encoded."""

    def __init__(self) -> None:
        self.number = 0

    def collect(self) -> Iterator[Metric]:
        self.number += 1
        yield Metric("some", "A metric.", "gauge")


def page() -> tuple[MetricsPage, Encodings]:
    registry, encodings = CollectorRegistry(), Encodings()
    registry.register(encodings)  # type: ignore[arg-type]
    encodings.number = 0
    return MetricsPage(registry), encodings


def asking(accept: str = "") -> Request:
    return Request({"type": "http", "headers": [(b"accept", accept.encode())]})


async def test_metrics_are_encoded_once_for_all_who_ask_within_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics, encodings = page()
    monkeypatch.setattr(metrics_page, "_KEPT_S", 1e9)
    responses: list[Any] = await asyncio.gather(*(metrics.send(asking()) for _ in range(200)))
    assert encodings.number == 1 and all(b"A metric." in each.body for each in responses)
    monkeypatch.setattr(metrics_page, "_KEPT_S", 0.0)
    metrics, encodings = page()
    for number in (1, 2, 3):
        await metrics.send(asking())
        assert encodings.number == number


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/plain;version=1.0.0;escaping=dots", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/openmetrics-text", "application/openmetrics-text; version=1.0.0; charset=utf-8"),
        (
            "application/openmetrics-text;version=abc,text/plain;q=0.5",
            "text/plain; version=0.0.4; charset=utf-8",
        ),
        (
            "application/openmetrics-text;version=0.0.1,text/plain;version=0.0.4;q=0.5",
            "text/plain; version=0.0.4; charset=utf-8",
        ),
    ],
)
async def test_a_client_gets_a_format_that_it_accepts(accept: str, expected: str) -> None:
    metrics, _ = page()
    assert (await metrics.send(asking(accept))).headers["content-type"] == expected
