"""What the Ray actors of all tiers share; plain classes, made remote by the orchestration."""

import os
from collections.abc import Sequence
from typing import Any, ClassVar

from services.common.config import parse
from services.common.host import Host
from services.common.host_thread import HostThread, interface_towards
from services.common.telemetry.config import TelemetryConfig
from services.common.telemetry.logs import configure_logging


class ServiceActor:
    """Hosts one replica's gRPC server, from its constructor on.

    When the service can serve no more, the process ends.

    Attributes:
        role: Its tier.
        follower: Class of the actors that share a replica with this one, where that is possible.
        followers: Their handles, in order of their ranks.
    """

    role: ClassVar[str]
    follower: ClassVar[type | None] = None

    def __init__(self, config: dict[str, Any], registry: str = "", followers: Sequence[Any] = ()) -> None:
        """Builds and starts the host.

        Args:
            config: Of the tier, and under `ports` those that it may listen at; any free one without.
            registry: host:port of the registry. Where the configuration names no address, the server listens
                at the interface that leads there: on one machine at loopback, on a cluster at the node's own.
            followers: Handles of the other actors of a shared replica.

        Raises:
            FlyServeError: The configuration or the model cannot be served.
        """
        self.followers = followers
        config = dict(config)
        ports = config.pop("ports", 0)
        if registry:
            config = {"address": f"{interface_towards(registry)}:{ports}", **config}
        configure_logging(parse(TelemetryConfig, config.get("telemetry"), "telemetry"), self.role)
        self._thread = HostThread(lambda: self.build(config), _end_process)

    async def build(self, config: dict[str, Any]) -> Host:
        """The tier's host, not yet started; runs on the host's own event loop."""
        raise NotImplementedError

    def address(self) -> str:
        """host:port of the gRPC server."""
        return self._thread.host.address

    def drain(self, grace_s: float) -> None:
        """Lets running streams finish within `grace_s`, then frees everything; draining again joins in."""
        self._thread.stop(grace_s)


def _end_process() -> None:
    # NOTE: not an exception: Ray must see that the actor is lost, not that it has ended.
    os._exit(1)
