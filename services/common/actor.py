"""What the Ray actors of all tiers share; plain classes, made remote by the orchestration."""

import os
from collections.abc import Sequence
from typing import Any, ClassVar

from services.common.config import parse
from services.common.host import Host
from services.common.host_thread import HostThread
from services.common.telemetry.config import TelemetryConfig
from services.common.telemetry.logs import configure_logging


class ServiceActor:
    """Hosts one replica's gRPC server.

    The server starts in the constructor, so an actor that Ray restarted serves again, and reports its new
    address to the registry. When the service can serve no more, the process ends.

    Attributes:
        role: Its tier.
        follower: Class of the actors that share a replica with this one, where that is possible.
        followers: Their handles, in order of their ranks.
    """

    role: ClassVar[str]
    follower: ClassVar[type | None] = None

    def __init__(
        self, config: dict[str, Any], replica: str, registry: Any = None, followers: Sequence[Any] = ()
    ) -> None:
        """Builds and starts the host.

        Args:
            config: Of the tier.
            replica: Name of the replica, stable over restarts.
            registry: Handle of the actor whose `report(role, replica, address)` is told the address.
            followers: Handles of the other actors of a shared replica.

        Raises:
            FlyServeError: The configuration or the model cannot be served.
        """
        self.followers = followers
        configure_logging(parse(TelemetryConfig, config.get("telemetry"), "telemetry"), self.role)
        self._thread = HostThread(lambda: self.build(config), _end_process)
        if registry is not None:
            registry.report.remote(self.role, replica, self.address())

    async def build(self, config: dict[str, Any]) -> Host:
        """The tier's host, not yet started; runs on the host's own event loop."""
        raise NotImplementedError

    def address(self) -> str:
        """host:port of the gRPC server."""
        return self._thread.host.address

    def ping(self) -> bool:
        """Whether the server's event loop still answers."""
        return self._thread.is_alive()

    def drain(self, grace_s: float) -> None:
        """Lets running streams finish within `grace_s`, then frees everything."""
        self._thread.stop(grace_s)


def _end_process() -> None:
    # NOTE: not an exception: Ray must see that the actor is lost, not that it has ended.
    os._exit(1)
