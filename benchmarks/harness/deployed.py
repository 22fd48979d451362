"""A whole deployment while a scenario runs: Ray, the controller, the services, a router."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flyserve.cli.terminal import messages
from flyserve.server import demo_file
from orchestration.deployment.file import Deployment, load_deployment
from orchestration.local.runner import LocalDeployment, LocalOptions, local_deployment
from router.config import HttpConfig

_STARTUP_TIMEOUT_S = 600.0
_KV_TOKENS_PER_SEQUENCE = 1024


@contextmanager
def deployed(deployment: Deployment, what: str, verbose: bool = False) -> Iterator[LocalDeployment]:
    """Yield a deployment, which runs while the block does; the terminal shows `what` starts.

    Raises:
        FlyServeError: The deployment cannot be started.
    """
    options = LocalOptions(startup_timeout_s=_STARTUP_TIMEOUT_S, verbose=verbose)
    with (
        messages().status(f"starting {what}") as progress,
        local_deployment(deployment, lambda _: None, options) as running,
    ):
        progress.stop()
        yield running


def demo_with_room(max_concurrent: int, http: HttpConfig | None = None) -> Deployment:
    """Return the demo with replicas that hold `max_concurrent` sequences, and a router that admits them.

    The router serves gRPC alone; with `http`, it serves HTTP, too, at a free port.
    """
    deployment = load_deployment(demo_file())
    room = {"max_sequences": max_concurrent, "kv_tokens": max_concurrent * _KV_TOKENS_PER_SEQUENCE}
    router: dict[str, Any] = {"max_concurrent": max_concurrent, "grpc_port": 0, "http_port": None}
    if http is not None:
        router |= {"http_port": 0, "http": http}
    assert deployment.drafter is not None
    return deployment.model_copy(
        update={
            "target": deployment.target.model_copy(update=room),
            "drafter": deployment.drafter.model_copy(update=room),
            "router": deployment.router.model_copy(update=router),
        }
    )
