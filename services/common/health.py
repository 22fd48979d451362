"""The health service of a host: those who watch it do not hold up its end."""

import asyncio
from typing import Any

from grpc_health.v1._async import HealthServicer


class Health(HealthServicer):  # type: ignore[misc]
    """As gRPC's own, but its watches can be ended; they would go on until a server's grace is over."""

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
        """Ends every watch in good order."""
        for watch in self._watches:
            watch.cancel()
