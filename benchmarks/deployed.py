"""A whole deployment for the time of a benchmark: Ray, the controller, the services, a router."""

from collections.abc import Iterator
from contextlib import contextmanager

from flyserve.cli.terminal import messages
from orchestration.deployment.file import Deployment
from orchestration.local.runner import LocalOptions, local_deployment

_STARTUP_TIMEOUT_S = 600.0


@contextmanager
def deployed(deployment: Deployment, what: str, verbose: bool = False) -> Iterator[str]:
    """The address of a deployment, which runs while the block does; the terminal says `what` it starts.

    Raises:
        FlyServeError: It cannot be started.
    """
    options = LocalOptions(startup_timeout_s=_STARTUP_TIMEOUT_S, verbose=verbose)
    with (
        messages().status(f"starting {what}") as progress,
        local_deployment(deployment, lambda _: None, options) as running,
    ):
        progress.stop()
        yield running.address
