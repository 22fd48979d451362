"""Load reporter: send the length of a router's queue to the registry, for autoscaling."""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Callable

import grpc

from fly.clock import Clock
from protos.flyserve.v1.registry_pb2 import ReportRequest
from protos.flyserve.v1.registry_pb2_grpc import RegistryStub
from services.common.channel import open_channel
from services.common.security.identity import CONTROLLER, Identity

logger = logging.getLogger(__name__)

_INTERVAL_S = 1.0
_TIMEOUT_S = 2.0


class LoadReporter:
    """Reports once a second while sequences wait, and once more when none does any longer.

    A report that fails is not repeated: the next one replaces it.
    """

    def __init__(
        self, registry: str, clock: Clock, identity: Identity | None, waiting: Callable[[], int]
    ) -> None:
        """Report what `waiting` returns to the registry at host:port `registry`."""
        self._registry, self._clock, self._identity, self._waiting = registry, clock, identity, waiting
        self._router = uuid.uuid4().hex

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Report within the block."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        last = 0
        while True:
            await self._clock.sleep(_INTERVAL_S)
            waiting = self._waiting()
            if waiting or last:
                last = waiting if await self._report(waiting) else last

    async def _report(self, waiting: int) -> bool:
        """Send one report; return False if the registry does not answer."""
        tls = self._identity.peer_tls(CONTROLLER) if self._identity else None
        async with open_channel(self._registry, tls) as channel:
            try:
                request = ReportRequest(router=self._router, waiting=waiting)
                await RegistryStub(channel).Report(request, timeout=_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                logger.debug("registry %s takes no report: %s", self._registry, error.code().name)
                return False
        return True
