"""Calls to a deployment's controller, from a process that is connected to its Ray."""

from collections.abc import Mapping
from typing import Any

from flyserve.core.errors import ConfigError, FlyServeError, NotReady
from flyserve.core.messages import Role
from orchestration.deployment.file import Deployment
from orchestration.deployment.security import security_of
from orchestration.ray.names import CONTROLLER_ACTOR, NAMESPACE_PREFIX
from services.common.security.identity import CONTROLLER

HEAD_RESOURCE = "node:__internal_head__"
"""A resource of Ray's head node; a new head after a lost one has it as well."""


def create_controller(deployment: Deployment, host: str | None, actors: Mapping[Role, str]) -> Any:
    """Return the controller of a deployment; start it on the head if there is none. It outlives this process.

    NOTE: it needs no CPU, which a head often does not offer, but a small amount of a resource of the head.
    The registry listens at the interface `host`, the head's own address if None.
    """
    import ray

    from orchestration.ray.controller import Controller

    name, security = deployment.name, security_of(deployment.security, CONTROLLER)
    return (
        ray.remote(Controller)
        .options(
            name=CONTROLLER_ACTOR,
            namespace=NAMESPACE_PREFIX + name,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            resources={HEAD_RESOURCE: 0.001},
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=16,
        )
        .remote(name, host, deployment.controller, dict(actors), security)
    )


def find_controller(name: str | None) -> Any:
    """Return the controller of a running deployment; without a name, that of the only one.

    Raises:
        NotReady: There is no deployment, or none of this name; the message lists those that run.
        ConfigError: Several run, and no name is given.
    """
    import ray

    running = _running_names()
    known = f"running: {', '.join(running)}" if running else "none is running: flyserve apply starts one"
    if name is None and len(running) > 1:
        raise ConfigError(f"--name: is not given, and several deployments run: {', '.join(running)}")
    if name is None and not running:
        raise NotReady(f"there is no deployment; {known}")
    try:
        return ray.get_actor(CONTROLLER_ACTOR, namespace=NAMESPACE_PREFIX + (name or running[0]))
    except ValueError:
        raise NotReady(f"no deployment has the name {name}; {known}") from None


def has_controller(name: str) -> bool:
    """Return False once a deployment of this process's Ray has been ended; a restart does not count."""
    import ray

    try:
        ray.get_actor(CONTROLLER_ACTOR, namespace=NAMESPACE_PREFIX + name)
    except ValueError:
        return False
    except ray.exceptions.RayError:
        return True  # the GCS did not answer
    return True


def _running_names() -> list[str]:
    """Return the names of all deployments of the Ray cluster, sorted."""
    from ray.util import list_named_actors

    return sorted(
        actor["namespace"].removeprefix(NAMESPACE_PREFIX)
        for actor in list_named_actors(all_namespaces=True)
        if actor["name"] == CONTROLLER_ACTOR and actor["namespace"].startswith(NAMESPACE_PREFIX)
    )


def get_result(reference: Any, timeout_s: float) -> Any:
    """Return the result of a call of the controller.

    Raises:
        FlyServeError: The error that it raised.
        NotReady: It did not answer in time, or its process has ended.
    """
    import ray

    from orchestration.ray.api import constructor_error, reason

    try:
        return ray.get(reference, timeout=timeout_s)
    except ray.exceptions.GetTimeoutError:
        raise NotReady(f"the controller did not answer within {timeout_s:.0f} s") from None
    except ray.exceptions.ActorUnavailableError:
        raise NotReady("the controller is being restarted: try again") from None
    except ray.exceptions.RayActorError as error:
        if isinstance(cause := constructor_error(error), FlyServeError):
            raise cause from None
        raise NotReady(f"the controller has ended: {reason(error)}") from None
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None


def stop_controller(controller: Any, grace_s: float, timeout_s: float) -> None:
    """Drain and stop a deployment, then its controller.

    Raises:
        NotReady: It did not finish in time.
    """
    import ray

    get_result(controller.down.remote(grace_s), timeout_s)
    ray.kill(controller)
