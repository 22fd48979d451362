"""One instance on Ray, as its supervisor sees it: one unit of failure, however many actors share it."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayActorError
from ray.util import placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup

from fly.errors import FlyServeError
from orchestration.control.placement import shortage
from orchestration.control.supervision import ReplicaDown, ReplicaLost, ReplicaRefused
from orchestration.deployment.plan import ReplicaSpec
from orchestration.ray.calls import cause, nodes, reason, result

logger = logging.getLogger(__name__)

_PLACEMENT_S = 2.0
"""What has no place after so long is told to wait for one; Ray itself would wait in silence."""
_POLL_S = 0.1
_LISTEN_S = 30.0
"""How long one question for a follower's end waits: a thread there is not held for longer."""


class RayReplica:
    """A leader, which serves, and its followers, all in one placement group."""

    def __init__(
        self,
        spec: ReplicaSpec,
        placement: PlacementGroup,
        leader: Any,
        followers: Sequence[Any],
        node: str = "",
    ) -> None:
        """Of actors that were asked for.

        Args:
            spec: What they serve.
            placement: Their placement group.
            leader: Its actor.
            followers: Their actors, in order of their ranks.
            node: Id of the node that they are known to run on.
        """
        self._spec, self._placement = spec, placement
        self._leader, self._followers, self._node = leader, followers, node

    async def node(self) -> str:
        for _ in range(int(_PLACEMENT_S / _POLL_S)):
            if self._node:
                return self._node
            table = await asyncio.to_thread(placement_group_table, self._placement)
            if table["state"] == "CREATED":
                self._node = str(next(iter(table["bundles_to_node_id"].values())))
            elif table["state"] == "REMOVED":
                raise ReplicaLost("its placement group was removed")
            else:
                await asyncio.sleep(_POLL_S)
        raise ReplicaDown(shortage(self._spec, await asyncio.to_thread(nodes)))

    async def address(self) -> str:
        address = asyncio.ensure_future(result(self._leader.address.remote()))
        ends = [asyncio.create_task(_end_of(follower)) for follower in self._followers]
        try:
            await asyncio.wait([address, *ends], return_when=asyncio.FIRST_COMPLETED)
            if not address.done():
                raise ReplicaLost(next(end.result() for end in ends if end.done()))
            return str(address.result())
        except ActorDiedError as error:
            if isinstance(cause(error), FlyServeError):
                raise ReplicaRefused(reason(error)) from None
            raise ReplicaLost(reason(error)) from None
        except RayActorError:
            raise ReplicaDown from None
        finally:
            for call in (address, *ends):
                call.cancel()

    async def drain(self, grace_s: float) -> None:
        # Whatever happens: the processes are ended next.
        await asyncio.gather(result(self._leader.drain.remote(grace_s)), return_exceptions=True)

    async def end(self) -> None:
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        for actor in (self._leader, *self._followers):
            with contextlib.suppress(RayActorError, ValueError):
                ray.kill(actor)
        remove_placement_group(self._placement)


async def _end_of(follower: Any) -> str:
    """Waits for the end of a follower; says why it ended."""
    while True:
        try:
            if (end := await result(follower.end.remote(_LISTEN_S))) is not None:
                return str(end)
        except RayActorError as error:
            return reason(error)
