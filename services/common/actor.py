"""Base of the Ray actors of all tiers; plain classes, which the orchestration makes remote."""

import os
from collections.abc import Sequence
from typing import Any, ClassVar

from flyserve.signals import end_at_sigterm
from services.common.addresses import interface_towards
from services.common.config import parse
from services.common.garbage import exempt_from_collection
from services.common.host import Host
from services.common.host_thread import HostThread
from services.common.loading_progress import loading_progress
from services.common.telemetry.config import TelemetryConfig
from services.common.telemetry.logs import configure_logging


class ServiceActor:
    """Host one replica's gRPC server from the constructor on.

    The process ends when the service has failed, and at SIGTERM: then its streams continue elsewhere.

    Attributes:
        follower: Class of the actors that share a replica with this one; None if the tier cannot be shared.
    """

    role: ClassVar[str]
    follower: ClassVar[type | None] = None

    def __init__(self, config: dict[str, Any], registry: str = "", followers: Sequence[Any] = ()) -> None:
        """Build and start the host.

        The server listens at a port of `ports` in the configuration; absent, at any free one. `replica` is
        its name, under which the progress of the load is published. If the
        configuration has no address, it listens on the interface that leads to host:port `registry`: loopback
        on one machine, the node's own on a cluster. `followers` are the other actors of a shared replica.

        Raises:
            FlyServeError: The configuration or the model cannot be served.
        """
        end_at_sigterm()
        config = dict(config)
        ports = config.pop("ports", 0)
        loading_progress.begin(config.pop("replica", ""))
        if registry:
            config = {"address": f"{interface_towards(registry)}:{ports}", **config}
        configure_logging(parse(TelemetryConfig, config.get("telemetry"), "telemetry"), self.role)
        self._thread = HostThread(lambda: self.build(config, followers), _end_process)
        exempt_from_collection()

    @classmethod
    async def build(cls, config: dict[str, Any], followers: Sequence[Any] = ()) -> Host:
        """Return the tier's host, not yet started; runs on the host's own event loop.

        `followers` are the handles of the followers of a shared replica, in order of their ranks.
        """
        raise NotImplementedError

    def address(self) -> str:
        """Return host:port of the gRPC server."""
        return self._thread.host.address

    def drain(self, grace_s: float) -> None:
        """Let running streams finish within `grace_s`, then free everything.

        A second call waits for the first.
        """
        self._thread.stop(grace_s)


def _end_process() -> None:
    # NOTE: not an exception: Ray must see that the actor is lost, not that it has ended.
    os._exit(1)
