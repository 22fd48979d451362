"""A shared replica on Ray: its actors in one placement group, one unit of failure."""

import asyncio
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayActorError
from ray.util import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fly.errors import FlyServeError
from orchestration.ray_calls import cause, reason, result
from orchestration.reconciler import ReplicaDown, ReplicaFailed, ReplicaLost
from orchestration.topology import ReplicaSpec

_PLACEMENT_WAIT_S = 2.0
# One thread follows, one waits to say why it ended.
_FOLLOWER_CONCURRENCY = 2


class RayGroup:
    """A leader and its followers on one node; none of them is restarted, the whole group is started anew."""

    def __init__(self, spec: ReplicaSpec, leader: type, controller: Any, concurrency: int) -> None:
        """Asks for the actors; they start as soon as one node has room for all.

        Args:
            spec: Of the replica.
            leader: Class of the actor that serves; names its followers' class.
            controller: That the leader reports to.
            concurrency: Calls that the leader answers at once.
        """
        self._spec = spec
        bundles = [{"CPU": spec.num_cpus}] * spec.shards
        self._placement = placement_group(bundles, strategy="STRICT_PACK")
        follower: Any = getattr(leader, "follower", None)
        assert follower is not None, f"{spec.actor} cannot be shared"
        followers = [
            self._options(follower, rank, _FOLLOWER_CONCURRENCY).remote() for rank in range(1, spec.shards)
        ]
        serving = self._options(leader, 0, concurrency)
        self._leader = serving.remote(dict(spec.config), spec.replica, controller, followers)
        self._actors = [self._leader, *followers]
        # NOTE: asked once: each of these calls occupies a thread of its follower for good.
        self._ends = [follower.end.remote() for follower in followers]

    async def address(self) -> str:
        await self._require_place()
        address = asyncio.ensure_future(result(self._leader.address.remote()))
        ends = [asyncio.ensure_future(result(end)) for end in self._ends]
        try:
            await asyncio.wait([address, *ends], return_when=asyncio.FIRST_COMPLETED)
            if address.done():
                return self._outcome(address)
            ended = next(end for end in ends if end.done())
            raise ReplicaLost(reason(error) if (error := ended.exception()) else ended.result())
        finally:
            for call in (address, *ends):
                call.cancel()

    async def drain(self, grace_s: float) -> None:
        # Whatever happens: the processes are ended next.
        await asyncio.gather(result(self._leader.drain.remote(grace_s)), return_exceptions=True)

    def kill(self) -> None:
        for actor in self._actors:
            ray.kill(actor)
        remove_placement_group(self._placement)

    async def _require_place(self) -> None:
        """Returns once one node has reserved room for all; Ray itself would wait in silence."""
        if not await asyncio.to_thread(self._placement.wait, _PLACEMENT_WAIT_S):
            spec = self._spec
            raise ReplicaDown(f"no node has room for {spec.shards} shards of {spec.num_cpus:g} CPUs yet")

    def _outcome(self, address: "asyncio.Future[Any]") -> str:
        try:
            return str(address.result())
        except ActorDiedError as error:
            if not isinstance(cause(error), FlyServeError):
                raise ReplicaLost(reason(error)) from None
            self.kill()
            raise ReplicaFailed(reason(error)) from None
        except RayActorError:
            raise ReplicaDown from None

    def _options(self, actor: type, bundle: int, concurrency: int) -> Any:
        strategy = PlacementGroupSchedulingStrategy(self._placement, placement_group_bundle_index=bundle)
        return ray.remote(actor).options(
            num_cpus=self._spec.num_cpus,
            max_restarts=0,
            max_concurrency=concurrency,
            scheduling_strategy=strategy,
        )
