"""The health service of a host: its watches do not delay the end of a drain."""

import asyncio
from typing import Any

from grpc_health.v1._async import HealthServicer


class Health(HealthServicer):  # type: ignore[misc]
    """gRPC's health servicer, whose watches can be ended; else they would last for the whole grace period."""

    def __init__(self) -> None:
        super().__init__()
        self._watches: set[asyncio.Future[None]] = set()

    async def Watch(self, request: Any, context: Any) -> None:
        watch = asyncio.ensure_future(super().Watch(request, context))
        self._watches.add(watch)
        try:
            await asyncio.wait([watch])
        finally:
            self._watches.discard(watch)
            watch.cancel()
        if not watch.cancelled():
            watch.result()

    def end_watches(self) -> None:
        """End every watch without an error."""
        for watch in self._watches:
            watch.cancel()
