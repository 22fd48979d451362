"""Ray actors of a target replica: the host, and the followers of a shared model."""

import contextlib
import logging
import os
from collections.abc import Sequence
from concurrent.futures import Future
from threading import Timer
from typing import Any

from flyserve.signals import end_at_sigterm
from services.common.actor import ServiceActor
from services.common.config import parse
from services.common.host import Host
from services.target.config import TARGETS, TargetConfig

logger = logging.getLogger(__name__)

_EXIT_DELAY_S = 1.0


class TargetFollower:
    """Rank of a shared replica other than its leader; its process ends with the group."""

    def __init__(self) -> None:
        end_at_sigterm()
        self._end: Future[str] = Future()

    def follow(self, config: dict[str, Any], rank: int, port: int) -> None:
        """Take part in the group whose rendezvous is at `port` of this node, until the group ends."""
        try:
            from services.engine.sharding.follower import follow

            follow(parse(TargetConfig, config, "target"), rank, port)
        except Exception as error:
            logger.exception("rank %d has ended", rank)
            self._end.set_result(f"rank {rank} has ended: {error}")
        else:
            self._end.set_result(f"rank {rank} has ended with its group")
        # NOTE: it is useless without its group, even if no process is left to end it.
        Timer(_EXIT_DELAY_S, os._exit, (0,)).start()

    def end(self, timeout_s: float) -> str | None:
        """Wait for the end and return the reason; None if it has not ended within `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            return self._end.result(timeout_s)
        return None


class TargetActor(ServiceActor):
    """Serve from the constructor on; lead the followers of a shared model."""

    role = "target"
    follower = TargetFollower

    @classmethod
    async def build(cls, config: dict[str, Any], followers: Sequence[Any] = ()) -> Host:
        from services.target.servicer import create_host

        def start_followers(port: int) -> None:
            for rank, follower in enumerate(followers, start=1):
                follower.follow.remote(config, rank, port)

        return await create_host(parse(TARGETS, config, "target"), start_followers=start_followers)
