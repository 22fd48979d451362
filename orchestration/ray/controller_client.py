"""Calls to a deployment's controller, from a process that is connected to its Ray."""

from collections.abc import Mapping
from typing import Any

from fly.errors import FlyServeError, NotReady
from fly.messages import Role
from orchestration.deployment.file import ControllerConfig

HEAD_RESOURCE = "node:__internal_head__"
"""Ray's head node has it, a new head in the place of a lost one as well."""


def create_controller(
    name: str,
    host: str | None,
    config: ControllerConfig,
    actors: Mapping[Role, str],
    security: Mapping[str, Any] | None = None,
) -> Any:
    """The controller of a deployment, started where there is none: on the head, for longer than this process.

    NOTE: no CPU: a head often has none to give. What it asks for is there on the head only, and not zero.

    Args:
        name: Of the deployment.
        host: Interface that the registry listens at; None is the head's own.
        config: Where the registry is found.
        actors: Class of each tier's actor.
        security: Of the controller, as `controller_security` says it.
    """
    import ray

    from orchestration.ray.calls import NAMESPACE_PREFIX
    from orchestration.ray.controller import Controller
    from orchestration.ray.fleet import CONTROLLER

    return (
        ray.remote(Controller)
        .options(
            name=CONTROLLER,
            namespace=NAMESPACE_PREFIX + name,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            resources={HEAD_RESOURCE: 0.001},
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=16,
        )
        .remote(name, host, config, dict(actors), dict(security or {}))
    )


def find_controller(name: str) -> Any:
    """The controller of a running deployment.

    Raises:
        NotReady: There is no deployment of this name; says which there are.
    """
    import ray
    from ray.util import list_named_actors

    from orchestration.ray.calls import NAMESPACE_PREFIX
    from orchestration.ray.fleet import CONTROLLER

    try:
        return ray.get_actor(CONTROLLER, namespace=NAMESPACE_PREFIX + name)
    except ValueError:
        others = sorted(
            actor["namespace"].removeprefix(NAMESPACE_PREFIX)
            for actor in list_named_actors(all_namespaces=True)
            if actor["name"] == CONTROLLER and actor["namespace"].startswith(NAMESPACE_PREFIX)
        )
        known = f"there are: {', '.join(others)}" if others else "there is none: flyserve apply starts one"
        raise NotReady(f"no deployment is called {name}; {known}") from None


def ask(reference: Any, timeout_s: float, name: str = "the controller") -> Any:
    """The answer to a call of an actor.

    Raises:
        FlyServeError: As the actor raised it.
        NotReady: It did not answer in time, or has died.
    """
    import ray

    from orchestration.ray.calls import cause, reason

    try:
        return ray.get(reference, timeout=timeout_s)
    except ray.exceptions.GetTimeoutError:
        raise NotReady(f"{name} did not answer within {timeout_s:.0f} s") from None
    except ray.exceptions.ActorUnavailableError:
        raise NotReady(f"{name} is being restarted: ask again") from None
    except ray.exceptions.RayActorError as error:
        if isinstance(why := cause(error), FlyServeError):
            raise why from None
        raise NotReady(f"{name} died: {reason(error)}") from None
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None


def end_controller(controller: Any, grace_s: float, timeout_s: float) -> None:
    """Drains and ends a deployment, then its controller.

    Raises:
        NotReady: That was not done in time.
    """
    import ray

    ask(controller.down.remote(grace_s), timeout_s)
    ray.kill(controller)
