"""The fleet on Ray: one actor per replica, restarted by Ray when its process dies, or a group of actors."""

import asyncio
import importlib
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayActorError

from orchestration.groups import RayGroup
from orchestration.ray_calls import reason, result
from orchestration.reconciler import Replica, ReplicaDown, ReplicaFailed
from orchestration.topology import ReplicaSpec

# A drain occupies one of these for its whole grace period; address and ping must get through beside it.
_MAX_CONCURRENCY = 8


class RayReplica:
    """One replica as a Ray actor."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def address(self) -> str:
        try:
            return str(await result(self._handle.address.remote()))
        except ActorDiedError as error:
            raise ReplicaFailed(reason(error)) from None
        except RayActorError:
            raise ReplicaDown from None

    async def drain(self, grace_s: float) -> None:
        # Whatever happens: the process is ended next.
        await asyncio.gather(result(self._handle.drain.remote(grace_s)), return_exceptions=True)

    def kill(self) -> None:
        ray.kill(self._handle)


class RayFleet:
    """Starts replicas as Ray actors that report to the controller's actor."""

    def __init__(self, controller: Any) -> None:
        self._controller = controller

    def start(self, spec: ReplicaSpec) -> Replica:
        module, _, name = spec.actor.partition(":")
        service = getattr(importlib.import_module(module), name)
        if spec.shards > 1:
            return RayGroup(spec, service, self._controller, _MAX_CONCURRENCY)
        actor = ray.remote(service).options(
            num_cpus=spec.num_cpus,
            max_restarts=-1,
            max_concurrency=_MAX_CONCURRENCY,
        )
        return RayReplica(actor.remote(dict(spec.config), spec.replica, self._controller))
