"""`/metrics`: the router's metrics for Prometheus, encoded at most once a second for all who ask."""

import asyncio
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response

_KEPT_S = 1.0
"""Time that encoded metrics are kept: encoding takes a thread, and time from the event loop."""


class _Encoded(NamedTuple):
    content_type: str
    body: bytes
    expires_s: float


class MetricsPage:
    """Endpoint that returns the metrics of a registry, as plain text or in the format OpenMetrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._encoded: dict[str, _Encoded] = {}
        self._encoding = asyncio.Lock()

    async def send(self, request: Request) -> Response:
        # NOTE: a client also names versions; only the two formats are kept, so it cannot fill the memory.
        media_type = _media_type(request.headers.get("accept", ""))
        async with self._encoding:
            encoded = self._encoded.get(media_type)
            if encoded is None or encoded.expires_s <= _now_s():
                encoded = self._encoded[media_type] = await self._encode(media_type)
        return Response(encoded.body, headers={"content-type": encoded.content_type})

    async def _encode(self, media_type: str) -> _Encoded:
        encode, content_type = choose_encoder(media_type)
        expires_s = _now_s() + _KEPT_S
        return _Encoded(content_type, await asyncio.to_thread(encode, self._registry), expires_s)


def _media_type(accept: str) -> str:
    try:
        return choose_encoder(accept)[1].partition(";")[0]
    except (TypeError, ValueError):  # a version that is none
        return "text/plain"


def _now_s() -> float:
    return asyncio.get_running_loop().time()
