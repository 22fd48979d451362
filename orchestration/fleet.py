"""The fleet on Ray: one actor per replica, restarted by Ray when its process dies."""

import asyncio
import importlib
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayActorError, RayTaskError

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
            return str(await _result(self._handle.address.remote()))
        except ActorDiedError as error:
            raise ReplicaFailed(reason(error)) from None
        except RayActorError:
            raise ReplicaDown from None

    async def drain(self, grace_s: float) -> None:
        # Whatever happens: the process is ended next.
        await asyncio.gather(_result(self._handle.drain.remote(grace_s)), return_exceptions=True)

    def kill(self) -> None:
        ray.kill(self._handle)


class RayFleet:
    """Starts replicas as Ray actors that report to the controller's actor."""

    def __init__(self, controller: Any) -> None:
        self._controller = controller

    def start(self, spec: ReplicaSpec) -> Replica:
        module, _, name = spec.actor.partition(":")
        actor = ray.remote(getattr(importlib.import_module(module), name)).options(
            num_cpus=spec.num_cpus,
            max_restarts=-1,
            max_concurrency=_MAX_CONCURRENCY,
        )
        return RayReplica(actor.remote(dict(spec.config), spec.replica, self._controller))


def reason(error: Exception) -> str:
    """Why an actor died, in one line: the message of its constructor's exception where there is one."""
    task_error = next((arg for arg in error.args if isinstance(arg, RayTaskError)), None)
    cause = getattr(task_error, "cause", None)
    message = str(cause or "").strip() or str(error).strip().rpartition("\n")[2]
    return " ".join(message.split())


async def _result(reference: Any) -> Any:
    """Awaits a Ray reference in any event loop."""
    return await asyncio.wrap_future(reference.future())
