"""Load reporter: send a router's queue and alarms to the registry, for autoscaling and for `status`."""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Mapping

import grpc

from flyserve.core.clock import Clock
from flyserve.v1.registry_pb2 import ReportRequest
from flyserve.v1.registry_pb2_grpc import RegistryStub
from services.common.channel import open_channel
from services.common.security.identity import CONTROLLER, Identity

logger = logging.getLogger(__name__)

_INTERVAL_S = 1.0
_TIMEOUT_S = 2.0


class LoadReporter:
    """Reports once a second while sequences wait or there is an alarm, and once more when that has ended.

    A report that fails is not repeated: the next one replaces it.
    """

    def __init__(
        self,
        registry: str,
        clock: Clock,
        identity: Identity | None,
        waiting: Callable[[], int],
        alarms: Callable[[], Mapping[str, str]],
    ) -> None:
        """Report what `waiting` and `alarms` return to the registry at host:port `registry`."""
        self._registry, self._clock, self._identity = registry, clock, identity
        self._waiting, self._alarms = waiting, alarms
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
        is_due = False
        while True:
            await self._clock.sleep(_INTERVAL_S)
            waiting, alarms = self._waiting(), self._alarms()
            has_news = bool(waiting or alarms)
            if has_news or is_due:
                is_due = has_news if await self._report(waiting, alarms) else is_due

    async def _report(self, waiting: int, alarms: Mapping[str, str]) -> bool:
        """Send one report; return False if the registry does not answer."""
        tls = self._identity.peer_tls(CONTROLLER) if self._identity else None
        async with open_channel(self._registry, tls) as channel:
            try:
                request = ReportRequest(router=self._router, waiting=waiting, alarms=alarms)
                await RegistryStub(channel).Report(request, timeout=_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                logger.debug("registry %s takes no report: %s", self._registry, error.code().name)
                return False
            except ValueError:
                # NOTE: the next report may be one that can be sent: the reporter must not end.
                logger.exception("a report to registry %s cannot be written", self._registry)
                return False
        return True
